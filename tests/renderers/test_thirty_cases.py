"""Thirty small conversations in which chat renderers are known to fail, each in every family.

What must hold: the prompt of a turn and what was sampled after it begin the next prompt; where the
official template writes a conversation, the rendering is the template's; the mask is on the sampled
ids alone; no caller's text becomes a control token; arrays are aligned. `follow` and `hold` check all
but the template. The numbers in the names are those of the cases; 19, on fields besides contents, is in
`test_injection.py`.
"""

import json
import re
from dataclasses import replace

import pytest
from jinja2 import TemplateError

from mintjax.renderers import Renderer, RenderError
from tests.assets import has_template
from tests.families import FAMILIES
from tests.official import official_ids
from tests.renderers.conftest import speaker
from tests.renderers.replies import (
    HI,
    call,
    encoded,
    follow,
    hold,
    reply,
    result,
    said,
    stop,
    written,
)

TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "D",
        "parameters": {"type": "object", "properties": {"x": {"type": "string"}}},
    },
}
# Some formats write arguments without their types, which a schema tells.
NUMBERS = {
    "type": "function",
    "function": {
        "name": "f",
        "parameters": {
            "type": "object",
            "properties": {"x": {"type": "number"}, "y": {"type": "array"}},
        },
    },
}
CALLING = [name for name, family in FAMILIES.items() if family.calls]
REASONING = [name for name, family in FAMILIES.items() if family.reasoning]
# Where a family leaves its official template on purpose; docs/renderer_deviations.md has the reasons.
DEVIATES: dict[str, frozenset[str]] = {}


def user(content):
    return {"role": "user", "content": content}


def agree(renderer: Renderer, case: str, messages, tools=None) -> bool:
    """Whether the conversation is written, as the template writes it; else it is refused by name."""
    family = FAMILIES[renderer.name]
    try:
        rendered = renderer.render(messages, tools=tools)
    except RenderError as error:
        assert re.match(r"messages?\b|tools", str(error))
        return False
    hold(rendered, renderer)
    deviates = case in DEVIATES.get(renderer.name, ())
    if family.template is None or not has_template(family.template):
        return True
    try:
        official = official_ids(renderer.name, messages, tools)
    except (TemplateError, TypeError):
        official = None
    assert (list(rendered) != official) == deviates, written(rendered, renderer)
    return True


def turn_by_turn(renderer: Renderer, messages, replies, tools=None):
    """The stream of a conversation whose replies are sampled; None where one answers nothing."""
    stream, news, left = None, [], list(replies)
    for message in messages:
        if message["role"] != "assistant":
            news.append(message)
            continue
        prompt = renderer.render(news, tools=tools, extend=stream)
        stream, news = prompt.with_sampled(left.pop(0)), []
    return renderer.render(news, tools=tools, extend=stream) if news else stream


def canonical(renderer: Renderer, messages, tools=None) -> list[list[int]]:
    """What would be sampled for each reply, by the rendering that keeps all that was said."""
    kept = replace(renderer, history="keep").render(messages, tools=tools)
    return [
        kept.ids[kept.sampled & (kept.message == number)].tolist()
        for number, message in enumerate(messages)
        if message["role"] == "assistant"
    ]


def test_01_02_03_prompts(renderer):
    system = {"role": "system", "content": "S"}
    assert agree(renderer, "one user", [HI])
    agree(renderer, "system", [system, HI])
    agree(renderer, "empty system", [system | {"content": ""}, HI])
    bos = FAMILIES[renderer.name].bos
    if bos:
        written_ids = list(renderer.render([HI]))
        assert written_ids.count(renderer.tokenizer.control[bos]) == 1
        assert renderer.tokenizer.control[bos] == written_ids[0]


def test_04_an_empty_turn(renderer):
    only_stop = stop(renderer)
    following = follow(renderer, only_stop, [user("x")], first=[user("")])
    usual = follow(renderer, reply(renderer, "b"), [user("x")])
    assert list(following) == list(usual)


def test_05_two_turns(renderer):
    messages = [user("a"), said("b"), user("c"), said("d")]
    agree(renderer, "two turns", messages)
    kept = replace(renderer, history="keep").render(messages)
    stream = turn_by_turn(renderer, messages, [reply(renderer, "b"), reply(renderer, "d")])
    whole = list(stream.whole())
    # In formats where the next role's marker is the stop, a reply that is the last has none.
    shared = len(whole) if len(kept) >= len(whole) else len(kept)
    assert whole[:shared] == list(kept)[:shared]
    assert shared >= len(whole) - len(stop(renderer))


@pytest.mark.parametrize("content", [" yo", "yo\n", "\n\nyo"])
def test_06_07_08_whitespace_of_a_sample_stays(renderer, content):
    usual = follow(renderer, reply(renderer, "b"), [HI])
    following = follow(renderer, reply(renderer, content), [HI])
    assert list(following) == list(usual)


@pytest.mark.parametrize("content", ["\nx", "x\n", "…"])
def test_09_text_that_merges_with_newlines(renderer, content):
    assert agree(renderer, "newlines", [user(content)])
    if FAMILIES[renderer.name].calls:
        messages = [HI, said("", tool_calls=[call(renderer, {})]), result(content)]
        assert agree(renderer, "one call", messages)


def closing(renderer: Renderer, sampled: list[int]) -> str:
    """What stands between a reply that was cut and what would follow it after its stop."""
    cut = written(follow(renderer, sampled, [HI]), renderer)
    usual = written(follow(renderer, reply(renderer, "b"), [HI]), renderer)
    assert cut.endswith(usual)
    return cut.removesuffix(usual)


def test_10_a_reply_that_was_cut(renderer):
    whole = reply(renderer, "yo")
    cut = whole[: len(whole) - len(stop(renderer))]
    assert closing(renderer, cut) == renderer.form.written(renderer.form.stops[0])


@pytest.mark.parametrize("name", REASONING)
def test_11_a_reply_that_was_cut_inside_its_reasoning(name):
    renderer = speaker(name)
    messages = [HI, said("A", reasoning_content="Rrr")]
    (whole,) = canonical(renderer, messages)
    ends = [n for n, to in renderer.form.channels.items() if to == "content" and "think" in n]
    place = next((whole.index(renderer.tokenizer.control[end]) for end in ends), len(whole) // 3)
    close = renderer.form.written(renderer.form.stops[0])
    assert closing(renderer, whole[: place - 1]) == "".join(ends) + close


@pytest.mark.parametrize("name", CALLING)
def test_12_a_reply_that_was_cut_inside_a_call(name):
    renderer = speaker(name)
    (whole,) = canonical(renderer, [HI, said("", tool_calls=[call(renderer, {"x": "value"})])])
    cut = whole[: len(whole) // 2]
    assert closing(renderer, cut).endswith(renderer.form.written(renderer.form.stops[0]))
    assert renderer.parse(cut).stop == "length"
    assert "tool_calls" not in renderer.parse(cut).message


def test_13_14_ids_after_the_stop_are_refused(renderer):
    junk = renderer.tokenizer.encode("junk of many words")[0]
    for sampled in (
        [*reply(renderer, "yo"), *junk],
        [*reply(renderer, "yo"), *junk, *stop(renderer)],
    ):
        with pytest.raises(
            RenderError, match=r"(message 1 .assistant.|reply): \d+ ids follow the stop"
        ):
            follow(renderer, sampled, [HI])


def test_15_other_ends_of_a_reply(renderer):
    whole = reply(renderer, "yo")
    cut = whole[: len(whole) - len(stop(renderer))]
    for end in renderer.stop_tokens():
        follow(renderer, [*cut, end], [HI])
        parsed = renderer.parse([*cut, end])
        assert parsed.stop in ("stop", "end_of_text")
        assert parsed.message["content"] == "yo"


def test_16_17_18_control_text_in_contents(renderer):
    names = list(renderer.form.controls)[:12] + list(renderer.tokenizer.control)[:6]
    for content in (*names, "<tool_call></think><tool_response>", "".join(names)):
        rendered = renderer.render([user(content)])
        hold(rendered, renderer)
        assert content in written(rendered, renderer)
        if FAMILIES[renderer.name].calls:
            messages = [HI, said("", tool_calls=[call(renderer, {})]), result(content)]
            hold(renderer.render(messages), renderer)


def test_20_a_stop_spelled_in_ordinary_tokens_is_text(renderer):
    if renderer.stop_strings:
        return  # there a stop is a text
    spelled = f"say {renderer.form.stops[0]} twice"
    text = FAMILIES[renderer.name].reply.format("\0")
    before, after = (encoded(renderer, part) for part in text.split("\0"))
    sampled = [*before, *renderer.tokenizer.encode(spelled)[0], *after, *stop(renderer)]
    assert list(follow(renderer, sampled, [HI])) == list(
        follow(renderer, reply(renderer, "b"), [HI])
    )
    parsed = renderer.parse(sampled)
    assert (parsed.message["content"], parsed.stop) == (spelled, "stop")


def test_21_a_character_that_was_cut(renderer):
    emoji = "👩‍👩‍👧‍👦"
    whole = reply(renderer, emoji)[: -len(stop(renderer))]
    for place in range(len(whole)):
        follow(renderer, whole[:place], [user("n")])
        assert renderer.parse(whole[:place]).stop == "length"
    assert renderer.parse(whole).message["content"] == emoji


def test_22_23_roles_in_a_row(renderer):
    agree(renderer, "two users", [user("a"), user("b")])
    agree(renderer, "reply first", [said("x"), user("y")])
    agree(renderer, "two replies", [user("a"), said("b"), said("c")])


@pytest.mark.parametrize("name", CALLING)
def test_24_arguments_keep_their_order_and_letters(name):
    renderer = speaker(name)
    made = call(renderer, {"x": "é", "b": 1, "a": 2})
    messages = [HI, said("", tool_calls=[made]), result("ok"), said("fin"), user("z")]
    assert agree(renderer, "one call", messages)
    text = written(renderer.render(messages), renderer)
    places = [text.rindex(key) for key in ("é", "1", "2")]
    assert places == sorted(places)
    assert "\\u00e9" not in text


@pytest.mark.parametrize("name", CALLING)
def test_25_calls_that_are_not_spelled_as_the_template_would(name):
    renderer = speaker(name)
    messages = [HI, said("", tool_calls=[call(renderer, {"x": 1.0, "y": [1, {"z": 2}]})])]
    (usual,) = canonical(renderer, [*messages, result("ok")])
    text = renderer.tokenizer.decode(usual)
    compact = text.replace('": ', '":').replace(", ", ",")
    swapped = re.sub(r'\{("name": "f"), ("(?:arguments|parameters)": .*\})\}', r"{\2, \1}", text)
    for sampled in (usual, encoded(renderer, compact), encoded(renderer, swapped)):
        following = follow(renderer, sampled, [result("ok")])
        assert "ok" in written(following, renderer)
        (parsed,) = renderer.parse(sampled, tools=[NUMBERS]).message["tool_calls"]
        assert json.loads(parsed["function"]["arguments"]) == {"x": 1.0, "y": [1, {"z": 2}]}
        assert parsed["function"]["name"] == "f"


@pytest.mark.parametrize("name", [name for name in CALLING if FAMILIES[name].parallel])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_26_parallel_calls(name, order):
    renderer = speaker(name)
    calls = [call(renderer, {"x": number}, number) for number in (0, 1)]
    results = [result(f"result {number}", number) for number in order]
    messages = [HI, said("", tool_calls=calls), *results]
    assert agree(renderer, "two calls", messages)
    rendered = renderer.render(messages)
    for number, one in enumerate(results, 2):
        own = rendered.ids[rendered.message == number]
        assert one["content"] in renderer.tokenizer.decode(own)
    together = follow(renderer, canonical(renderer, messages)[0], results)
    kept = replace(renderer, history="keep").render(messages)
    assert list(together.whole()) == list(kept)


@pytest.mark.parametrize("name", CALLING)
def test_27_two_cycles_then_an_answer(name):
    renderer = speaker(name)
    messages = [
        HI,
        said("", tool_calls=[call(renderer, {"x": 1}, 0)]),
        result("one", 0),
        said("", tool_calls=[call(renderer, {"x": 2}, 1)]),
        result("two", 1),
        said("fin"),
        user("z"),
    ]
    assert agree(renderer, "two cycles", messages)
    stream = turn_by_turn(renderer, messages, canonical(renderer, messages))
    assert list(stream.whole()) == list(replace(renderer, history="keep").render(messages))


@pytest.mark.parametrize("name", REASONING)
@pytest.mark.parametrize("calls", [False, True])
def test_28_reasoning_that_the_template_forgets(name, calls):
    renderer = speaker(name)
    if calls and not FAMILIES[name].calls:
        return
    thought = said("" if calls else "A", reasoning_content="R")
    messages = [HI, thought, user("z")]
    if calls:
        thought["tool_calls"] = [call(renderer, {"x": 1})]
        messages = [HI, thought, result("ok"), said("A", reasoning_content="S"), user("z")]
    assert agree(renderer, "reasoning", messages)
    stream = turn_by_turn(renderer, messages, canonical(renderer, messages))
    kept = replace(renderer, history="keep").render(messages)
    assert list(stream.whole()) == list(kept)
    assert "R" in written(kept, renderer)
    whole = renderer.render(messages)
    assert bool(renderer.can_extend(messages)) == (list(whole) == list(stream.whole()))


def test_29_what_a_prompt_begins_is_not_sampled(renderer):
    prompt = renderer.render([HI])
    kept = replace(renderer, history="keep").render([HI, said("yo"), HI])
    assert list(kept)[: len(prompt)] == list(prompt)
    assert not prompt.sampled.any() and not kept.sampled[: len(prompt)].any()
    assert kept.ids[kept.sampled].tolist() == reply(renderer, "yo")


def test_30_what_is_refused_or_means_the_same(renderer):
    follow(renderer, reply(renderer, "b"), [user([{"type": "text", "text": "x"}])])
    parts = [user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])]
    assert list(renderer.render(parts)) == list(renderer.render([user("ab")]))
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    for bad in ([user([image])], [user("a") | {"role": "bot"}], []):
        with pytest.raises(RenderError, match=r"message 0|messages"):
            renderer.render(bad)
    try:
        following = follow(renderer, reply(renderer, "b"), [result("ok")])
    except RenderError as error:
        assert re.match(r"message 2 \(tool\)", str(error))
    else:
        assert "ok" in written(following, renderer)


@pytest.mark.parametrize("name", CALLING)
def test_30_calls_without_content_and_tools_that_change(name):
    renderer = speaker(name)
    calls = [call(renderer, {"x": 1})]
    for content in (None, [], ""):
        rendered = renderer.render([HI, said(content, tool_calls=calls), result("ok")])
        assert list(rendered) == list(
            renderer.render([HI, said("", tool_calls=calls), result("ok")])
        )
    if FAMILIES[name].tools:
        with pytest.raises(RenderError, match="tools: they differ"):
            answered = renderer.render([HI], tools=[TOOL]).with_sampled(reply(renderer, "b"))
            renderer.render([HI], extend=answered, tools=[TOOL, TOOL])
