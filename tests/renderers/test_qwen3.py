"""Qwen3 with think blocks: prompts, history, tool cycles, what closes a cut reply, and reading."""

import pytest

from mintjax.renderers import RenderError, Source, get_renderer
from tests.assets import vocabulary
from tests.official import official_ids
from tests.renderers.conftest import speaker

THREE = ("qwen3", "qwen3_thinking", "qwen3_disable_thinking")
HI = {"role": "user", "content": "hi"}
CALL = {"type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
CALLED = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
U, A, END = "<|im_start|>user\n", "<|im_start|>assistant\n", "<|im_end|>\n"


def reply(content, reasoning=None, *calls):
    message = {"role": "assistant", "content": content}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    return message | ({"tool_calls": list(calls)} if calls else {})


def tool(content):
    return {"role": "tool", "content": content}


def spelled(text):
    """Ids of a text, control tokens in it by id."""
    return vocabulary("qwen3").encode(text, add_special_tokens=False).ids


def text(rendered, only=None):
    view = speaker("qwen3").tokenizer
    return view.decode(rendered.ids if only is None else rendered.ids[only])


@pytest.mark.parametrize(
    ("name", "prompt"),
    [
        ("qwen3", ""),
        ("qwen3_thinking", "<think>\n"),
        ("qwen3_disable_thinking", "<think>\n\n</think>\n\n"),
    ],
)
def test_the_generation_prompt(name, prompt):
    rendered = speaker(name).render([HI])
    assert text(rendered) == f"{U}hi{END}{A}{prompt}"
    assert list(rendered) == spelled(f"{U}hi{END}{A}{prompt}")
    assert not rendered.sampled.any()
    assert set(rendered.source[-len(spelled(A + prompt)) :].tolist()) == {Source.HEADER}


@pytest.mark.parametrize(
    ("name", "reasoning", "said"),
    [
        ("qwen3", None, "<think>\n\n</think>\n\nyo"),
        ("qwen3", "Hm.", "<think>\nHm.\n</think>\n\nyo"),
        ("qwen3_thinking", None, "\n</think>\n\nyo"),
        ("qwen3_thinking", "Hm.", "Hm.\n</think>\n\nyo"),
        ("qwen3_disable_thinking", None, "yo"),
    ],
)
def test_a_kept_reply_is_all_that_follows_the_generation_prompt(name, reasoning, said):
    renderer = speaker(name, history="keep")
    prompt = renderer.render([HI])
    rendered = renderer.render([HI, reply("yo", reasoning), HI])
    assert text(rendered, rendered.sampled) == f"{said}<|im_end|>"
    stream = [*prompt, *spelled(f"{said}<|im_end|>")]
    assert list(rendered)[: len(stream)] == stream
    assert not rendered.sampled[: len(prompt)].any()


def test_history_as_the_template_leaves_it_and_as_it_was_said():
    messages = [HI, reply("yo", "Hm."), HI, reply("\nyes", "\nSo.\n")]
    template = speaker("qwen3").render(messages)
    assert text(template) == (
        f"{U}hi{END}{A}yo{END}{U}hi{END}{A}<think>\nSo.\n</think>\n\nyes{END}"
    )
    kept = speaker("qwen3", history="keep").render(messages)
    assert text(kept) == (
        f"{U}hi{END}{A}<think>\nHm.\n</think>\n\nyo{END}"
        f"{U}hi{END}{A}<think>\n\nSo.\n\n</think>\n\n\nyes{END}"
    )


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("qwen3", reply("yo", "Hm.")),
        ("qwen3", reply("yo")),
        ("qwen3_thinking", reply("yo", "Hm.")),
        ("qwen3_disable_thinking", reply("yo")),
    ],
)
def test_the_templates_forget_think_blocks_at_the_next_user(name, answer):
    assert speaker(name).can_extend([HI, answer])
    parted = speaker(name).can_extend([HI, answer, HI])
    assert (bool(parted), parted.message) == (False, 1)


def test_reasoning_lives_on_in_a_tool_cycle():
    messages = [HI, reply("", "Look.", CALL), tool("7"), reply("seven", "Seen.")]
    renderer = speaker("qwen3")
    assert text(renderer.render(messages)) == (
        f"{U}hi{END}{A}<think>\nLook.\n</think>\n\n{CALLED}{END}"
        f"{U[:-1]}\n<tool_response>\n7\n</tool_response>{END}"
        f"{A}<think>\nSeen.\n</think>\n\nseven{END}"
    )
    assert renderer.can_extend(messages)
    assert renderer.can_extend([*messages, HI]).message == 1


def test_parallel_calls_are_answered_in_one_turn():
    renderer = speaker("qwen3_thinking")
    prompt = renderer.render([HI])
    answered = prompt.with_sampled(spelled(f"So.\n</think>\n\n{CALLED}\n{CALLED}<|im_end|>"))
    following = renderer.render([tool("1"), tool("2")], extend=answered)
    assert text(following) == (
        "\n<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n"
        f"</tool_response>{END}{A}<think>\n"
    )


@pytest.mark.parametrize(
    ("name", "said", "glue"),
    [
        ("qwen3", "<think>\nHm.\n</think>\n\nyo<|im_end|>", "\n"),
        ("qwen3", "<think>\nHm.\n</think>\n\nyo", END),
        ("qwen3", "<think>\nHm.", f"</think>{END}"),
        ("qwen3", "<think>\nHm. <tool_call>", f"</think>{END}"),
        ("qwen3", "<think>\nHm.<|endoftext|>", f"</think>{END}"),
        ("qwen3", "<think>\nHm.<|im_end|>", "\n"),
        ("qwen3", "<think>\n\n</think>\n\n<tool_call>\n{", END),
        ("qwen3", "", END),
        ("qwen3_thinking", "Hm.", f"</think>{END}"),
        ("qwen3_thinking", "", f"</think>{END}"),
        ("qwen3_thinking", "Hm.\n</think>", END),
        ("qwen3_disable_thinking", "yo", END),
        ("qwen3_disable_thinking", "yo<|im_end|>", "\n"),
    ],
)
def test_what_closes_a_reply(name, said, glue):
    renderer = speaker(name)
    prompt = renderer.render([HI])
    following = renderer.render([HI], extend=prompt.with_sampled(spelled(said)))
    assert text(following) == glue + text(prompt)
    assert not following.sampled.any()
    assert (following.message[: len(spelled(glue))] == 1).all()


@pytest.mark.parametrize(
    ("name", "said", "content", "reasoning"),
    [
        ("qwen3", "<think>\nHm.\n</think>\n\nyo", "yo", "Hm."),
        ("qwen3", "<think>\n\n</think>\n\n yo\n", " yo\n", ""),
        ("qwen3", "<think>\n\nHm.\n\n</think>\n\n\nyo", "\nyo", "\nHm.\n"),
        ("qwen3", "<think>Hm.</think>yo", "yo", "Hm."),
        ("qwen3", "yo", "yo", None),
        ("qwen3", "a<think>b</think>c", "a<think>b</think>c", None),
        ("qwen3", "<think>\na<think>b</think>c</think>d", "c</think>d", "a<think>b"),
        ("qwen3", "<think>\nHm.\n", "", "Hm."),
        ("qwen3", "", "", None),
        ("qwen3_thinking", "Hm.\n</think>\n\nyo", "yo", "Hm."),
        ("qwen3_thinking", "\n</think>\n\nyo", "yo", ""),
        ("qwen3_thinking", "Hm.", "", "Hm."),
        ("qwen3_thinking", "<think>\nHm.\n</think>\n\nyo", "yo", "\nHm."),
        ("qwen3_thinking", "<tool_call>\n", "", "<tool_call>\n"),
        ("qwen3_disable_thinking", "yo", "yo", None),
        ("qwen3_disable_thinking", "<think>\nHm.\n</think>\n\nyo", None, None),
    ],
)
def test_reasoning_is_read_back(name, said, content, reasoning):
    parsed = speaker(name).parse(spelled(f"{said}<|im_end|>"))
    assert parsed.stop == "stop"
    assert parsed.message == reply(said if content is None else content, reasoning)


@pytest.mark.parametrize("name", THREE[:2])
def test_a_call_is_read_after_the_reasoning_and_none_inside_it(name):
    renderer = speaker(name)
    opened = "<think>\n" * (name == "qwen3")
    said = f"{opened}Not {CALLED} yet\n</think>\n\nSo:\n{CALLED}<|im_end|>"
    parsed = renderer.parse(spelled(said))
    assert parsed.message == reply("So:", f"Not {CALLED} yet", CALL)
    (attempt,) = parsed.attempts
    assert renderer.tokenizer.decode(spelled(said)[slice(*attempt.span)]) == attempt.text == CALLED
    assert renderer.parse(spelled(f"{opened}{CALLED}")).attempts == ()


def test_a_call_that_was_cut_after_the_reasoning():
    parsed = speaker("qwen3").parse(spelled('<think>\nR\n</think>\n\n<tool_call>\n{"name": "f'))
    assert (parsed.stop, [one.status for one in parsed.attempts]) == ("length", ["unclosed"])
    assert parsed.message == reply('<tool_call>\n{"name": "f', "R")


@pytest.mark.parametrize("name", ["qwen3_disable_thinking", "qwen3_instruct"])
def test_deviation_reasoning_is_refused_where_there_is_none(name):
    """The templates write it after the last user message, or leave it out in silence."""
    with pytest.raises(RenderError, match=r"message 1 \(assistant\).*writes no reasoning"):
        speaker(name).render([HI, reply("yo", "Hm.")])


def test_deviation_a_think_block_in_the_text_is_text():
    """The official template takes it for reasoning, and forgets it at the next user."""
    said = "<think>\nHm.\n</think>\n\nyo"
    for name in THREE:
        rendered = speaker(name).render([HI, reply(said), HI])
        assert said in text(rendered)
        view = speaker(name).tokenizer
        assert view.control["</think>"] not in rendered.ids[rendered.message == 1]


def test_a_tool_result_that_a_user_wrote_is_no_question():
    """As in the official template: reasoning before it is not forgotten."""
    result = {"role": "user", "content": "<tool_response>\n7\n</tool_response>"}
    messages = [HI, reply("", "Look.", CALL), result]
    assert "<think>\nLook.\n</think>" in text(speaker("qwen3").render(messages))
    result["content"] += " "
    assert "Look." not in text(speaker("qwen3").render(messages))


def test_a_vocabulary_without_think_tokens():
    with pytest.raises(RenderError, match=r"needs the control tokens .*<think>, </think>"):
        get_renderer("qwen3", vocabulary("smollm2"))


def test_deviation_text_parts_are_joined():
    """The official template writes nothing for a list of parts."""
    parts = [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]
    joined = speaker("qwen3").render([{"role": "user", "content": parts}])
    assert list(joined) == list(speaker("qwen3").render([HI]))
    official = official_ids("qwen3", [{"role": "user", "content": parts}])
    assert official == official_ids("qwen3", [HI | {"content": ""}])
