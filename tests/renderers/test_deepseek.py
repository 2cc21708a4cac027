"""All DeepSeek formats: system text at the start, arguments as text, think tags that are text."""

from random import Random

import pytest

from mintjax.renderers import RenderError
from tests.conversations import conversation, text
from tests.families import FAMILIES
from tests.official import official_ids
from tests.renderers.conftest import speaker
from tests.renderers.replies import HI, written

NAMES = [name for name in FAMILIES if name.startswith("deepseek")]
SYSTEM = {"role": "system", "content": "S"}
YO = {"role": "assistant", "content": "yo"}
CONVERSATIONS = 100


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


def test_system_messages_come_first_as_in_the_template(name):
    renderer = speaker(name)
    for seed in range(CONVERSATIONS):
        random = Random(seed)
        messages = conversation(random, FAMILIES[name])
        for _ in range(random.randrange(1, 3)):
            system = {"role": "system", "content": text(random)}
            messages.insert(random.randrange(len(messages) + 1), system)
        assert list(renderer.render(messages)) == official_ids(name, messages), messages


def test_the_numbers_of_messages_that_were_moved_stay(name):
    renderer = speaker(name)
    rendered = renderer.render([HI, SYSTEM, YO, SYSTEM])
    assert written(rendered, renderer).startswith("<｜begin▁of▁sentence｜>S\n\nS<｜User｜>hi")
    numbers = list(dict.fromkeys(rendered.message.tolist()))
    # A reply is awaited, even where the format asks for none.
    assert numbers[:5] == [-1, 1, 3, 0, 2] and rendered.cursor.awaiting


def test_a_late_system_message_that_cannot_move_is_refused(name):
    renderer = speaker(name)
    says = r"message {} \(system\): '\w+' has room for system messages at the start only; move it"
    with pytest.raises(RenderError, match=says.format(1)):
        speaker(name, history="keep").render([HI, SYSTEM])
    with pytest.raises(RenderError, match=says.format(2)):
        renderer.render([SYSTEM], extend=renderer.render([HI]).with_sampled([1]))
    parted = renderer.can_extend([HI, YO, SYSTEM, HI])
    assert (parted.message, bool(parted)) == (2, False)
    start = [SYSTEM, SYSTEM, HI]
    assert list(speaker(name, history="keep").render(start)) == official_ids(name, start)


@pytest.mark.parametrize("history", ["template", "keep"])
def test_arguments_given_as_a_dict_are_written_as_json(name, history):
    """The templates fail on them."""
    renderer = speaker(name, history=history)

    def calling(arguments):
        function = {"name": "f", "arguments": arguments}
        call = {"type": "function", "function": function}
        return [HI, {"role": "assistant", "content": "", "tool_calls": [call]}]

    assert list(renderer.render(calling({"b": "é", "a": 1.0}))) == list(
        renderer.render(calling('{"b": "é", "a": 1.0}'))
    )
    with pytest.raises(TypeError):
        official_ids(name, calling({"b": "é"}))


@pytest.mark.parametrize("history", ["template", "keep"])
def test_think_tags_in_content_are_text(name, history):
    """The templates of R1 and V3.1 cut the content there."""
    said = "<think>r</think>a</think>b"
    renderer = speaker(name, history=history)
    rendered = renderer.render([HI, YO | {"content": said}, HI])
    assert said in written(rendered, renderer)
    parsed = renderer.parse([*renderer.tokenizer.encode(said)[0], 1])
    assert parsed.message == {"role": "assistant", "content": said}


def test_no_calls_are_none(name):
    """The templates of V3-0324, R1 and V3.1 lose the content of a reply with an empty list."""
    renderer = speaker(name)
    messages = [HI, YO | {"tool_calls": []}]
    assert list(renderer.render(messages)) == official_ids(name, [HI, YO])
    assert official_ids(name, messages) != official_ids(name, [HI, YO])


def test_reasoning_where_the_format_has_none_is_refused():
    """The templates leave it out."""
    for name in ("deepseek_v3_0324", "deepseekv3"):
        with pytest.raises(RenderError, match=r"message 1 \(assistant\): .* writes no reasoning"):
            speaker(name).render([HI, YO | {"reasoning_content": "R"}])


def test_tools_where_the_format_has_none_are_refused():
    """The templates leave them out."""
    for name in ("deepseek_v3_0324", "deepseek_r1"):
        with pytest.raises(RenderError, match=r"tools: .* writes no tool schemas"):
            speaker(name).render([HI], tools=[{"name": "f"}])
