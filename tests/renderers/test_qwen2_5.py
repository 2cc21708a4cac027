"""Qwen2.5: its default system prompt, its tags, and arguments that are a JSON text already."""

from mintjax.renderers import Source
from tests.assets import vocabulary
from tests.official import official_ids
from tests.renderers.conftest import speaker

HI = {"role": "user", "content": "hi"}
DEFAULT = "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant."
PROMPT = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
TOOL = {"type": "function", "function": {"name": "f"}}
RESULT = {"role": "tool", "content": "7"}


def calling(arguments):
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def test_the_default_system_prompt_belongs_to_no_message():
    renderer = speaker("qwen2_5")
    rendered = renderer.render([HI])
    assert renderer.tokenizer.decode(rendered) == f"{DEFAULT}<|im_end|>\n{PROMPT}"
    assert (rendered.message < 0).sum() == len(renderer.tokenizer.encode(DEFAULT[12:])[0]) + 3
    assert Source.CONTENT not in rendered.source[rendered.message < 0]
    given = renderer.render([{"role": "system", "content": "S"}, HI])
    assert renderer.tokenizer.decode(given) == f"<|im_start|>system\nS<|im_end|>\n{PROMPT}"


def test_tools_follow_the_default_system_prompt():
    renderer = speaker("qwen2_5")
    text = renderer.tokenizer.decode(renderer.render([HI], tools=[TOOL]))
    assert text.startswith(f"{DEFAULT}\n\n# Tools\n\nYou may call one or more functions")
    assert '<tools>\n{"type": "function", "function": {"name": "f"}}\n</tools>' in text


def test_tags_of_results_are_text_and_tags_of_calls_are_tokens():
    renderer = speaker("qwen2_5")
    assert "<tool_response>" not in renderer.tokenizer.control
    said = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call><|im_end|>'
    reply = vocabulary("qwen2.5").encode(said, add_special_tokens=False).ids
    answered = renderer.render([HI]).with_sampled(reply)
    following = renderer.render([RESULT, RESULT], extend=answered)
    assert renderer.tokenizer.decode(following) == (
        "\n<|im_start|>user\n<tool_response>\n7\n</tool_response>\n<tool_response>\n7\n"
        "</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    assert renderer.parse(reply).message == calling('{"x": 1}')


def test_deviation_arguments_that_are_a_text_are_written_as_they_are():
    """The official template writes them as a JSON text, quoted once more."""
    renderer = speaker("qwen2_5")
    written = list(renderer.render([HI, calling('{"x": 1}')]))
    assert written == list(renderer.render([HI, calling({"x": 1})]))
    assert written == official_ids("qwen2_5", [HI, calling({"x": 1})])
    quoted = renderer.tokenizer.decode(official_ids("qwen2_5", [HI, calling('{"x": 1}')]))
    assert '"arguments": "{\\"x\\": 1}"' in quoted
