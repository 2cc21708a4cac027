"""Gemma 3: whose text goes where, the turns it takes, and added tokens that are ordinary text."""

import pytest

from mintjax.renderers import RenderError
from tests.assets import vocabulary
from tests.renderers.conftest import speaker

HI = {"role": "user", "content": "hi"}
YO = {"role": "assistant", "content": "yo"}
SYSTEM = {"role": "system", "content": " S "}
TOOL = {"role": "tool", "content": "7"}


def spelled(text):
    """Ids of a text, control tokens in it by id."""
    return vocabulary("gemma3").encode(text, add_special_tokens=False).ids


def text(rendered):
    return speaker("gemma3").tokenizer.decode(rendered)


def test_the_system_text_heads_the_first_user_turn():
    rendered = speaker("gemma3").render([SYSTEM, HI | {"content": "\nhi "}, YO, HI])
    assert text(rendered) == (
        "<bos><start_of_turn>user\n S \n\nhi<end_of_turn>\n<start_of_turn>model\nyo<end_of_turn>\n"
        "<start_of_turn>user\nhi<end_of_turn>\n<start_of_turn>model\n"
    )
    head = rendered.ids[rendered.message == 0]
    assert text(head) == "<start_of_turn>user\n S \n\n"


def test_the_template_trims_replies_and_what_was_said_stays():
    messages = [HI, YO | {"content": " yo\n"}, HI]
    assert "model\nyo<end_of_turn>" in text(speaker("gemma3").render(messages))
    kept = speaker("gemma3", history="keep").render(messages)
    assert "model\n yo\n<end_of_turn>" in text(kept)
    assert speaker("gemma3").can_extend(messages).message == 1
    assert speaker("gemma3").can_extend([SYSTEM, HI, YO, HI])


@pytest.mark.parametrize(
    ("said", "glue", "stop"),
    [
        ("yo<end_of_turn>", "\n", "stop"),
        ("yo<eos>", "<end_of_turn>\n", "end_of_text"),
        ("yo", "<end_of_turn>\n", "length"),
        ("", "<end_of_turn>\n", "length"),
    ],
)
def test_what_closes_a_reply(said, glue, stop):
    renderer = speaker("gemma3")
    following = renderer.render([HI], extend=renderer.render([HI]).with_sampled(spelled(said)))
    assert text(following) == (
        f"{glue}<start_of_turn>user\nhi<end_of_turn>\n<start_of_turn>model\n"
    )
    parsed = renderer.parse(spelled(said))
    assert (parsed.stop, parsed.message["content"]) == (stop, "yo" if said else "")


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([YO, HI], r"message 0 \(assistant\): 'gemma3' writes no assistant message at the start"),
        ([HI, HI], r"message 1 \(user\): 'gemma3' writes no user message after one of the user"),
        ([HI, YO, YO], r"message 2 \(assistant\)"),
        ([SYSTEM, YO], r"message 1 \(assistant\)"),
        ([SYSTEM], r"message 1 \(assistant\): .* put a system message only before them"),
        ([HI, SYSTEM], r"message 1 \(system\)"),
        ([HI, YO, SYSTEM], r"message 2 \(system\)"),
        ([HI, YO, TOOL], r"message 2 \(tool\): .* results of tools into the user's text"),
        ([TOOL], r"message 0 \(tool\)"),
    ],
)
@pytest.mark.parametrize("history", ["template", "keep"])
def test_other_orders_are_refused(messages, says, history):
    with pytest.raises(RenderError, match=says):
        speaker("gemma3", history=history).render(messages)


def test_an_extension_takes_turns_as_well():
    renderer = speaker("gemma3")
    answered = renderer.render([HI]).with_sampled(spelled("yo<end_of_turn>"))
    for news in ([TOOL], [SYSTEM], [HI, HI], [YO]):
        with pytest.raises(RenderError, match=r"message \d \(\w+\): 'gemma3' writes no"):
            renderer.render(news, extend=answered)


def test_tags_and_blanks_are_text_and_keep_their_tokens():
    """They are added tokens of the vocabulary, which its model reads in plain text."""
    said = "<table>\n\n\n<td>  x\t\t</s>"
    renderer = speaker("gemma3")
    official = spelled(f"<start_of_turn>user\n{said}<end_of_turn>")
    assert len(official) == 11
    assert list(renderer.render([HI | {"content": said}]))[1 : 1 + len(official)] == official
    assert not {"<table>", "\n\n", "\t", "</s>"} & set(renderer.tokenizer.control)
    assert {"<start_of_image>", "<unused0>", "<mask>"} <= set(renderer.tokenizer.control)
    assert renderer.parse(spelled(f"{said}<end_of_turn>")).message["content"] == said
