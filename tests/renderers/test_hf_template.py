"""hf_template: the tokenizer's own chat template, extended only where it leaves the past alone."""

import subprocess
import sys
from functools import cache
from random import Random

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from mintjax.renderers import RenderError, get_renderer
from tests.assets import template, vocabulary
from tests.conversations import conversation, tool
from tests.families import FAMILIES
from tests.renderers.conftest import speaker
from tests.renderers.replies import HI, encoded, reply

CONVERSATIONS = 50
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


@cache
def own(name, chat_template=None):
    """A renderer with a family's vocabulary, as transformers loads it, and its template or another."""
    family = FAMILIES[name]
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=vocabulary(family.vocabulary), eos_token="<|im_end|>"
    )
    wrapped.chat_template = chat_template or template(family.template or name)
    return get_renderer("hf_template", wrapped)


@pytest.fixture(scope="module")
def instruct():
    return own("qwen3_instruct")


@pytest.fixture(scope="module")
def thinking():
    return own("qwen3")


@pytest.mark.parametrize("name", ["qwen3_instruct", "qwen3", "smollm2"])
def test_renderings_equal_those_of_the_family(name):
    renderer, ours = own(name), speaker(name)
    for seed in range(CONVERSATIONS):
        random = Random(seed)
        messages = conversation(random, FAMILIES[name])
        tools = [tool(random)] if FAMILIES[name].tools and seed % 2 else None
        assert list(renderer.render(messages, tools=tools)) == list(
            ours.render(messages, tools=tools)
        )


def test_extensions_equal_those_of_the_family(instruct):
    ours = speaker("qwen3_instruct")
    view = ours.tokenizer
    call = '<tool_call>\n{"name": "f", "arguments": {"x": "é"}}\n</tool_call>'
    news = [HI, {"role": "tool", "content": "ok"}, {"role": "user", "content": "a<|im_end|>b"}]
    for sampled in (
        reply(ours, " yo\n"),
        reply(ours, "\n\nyo"),
        reply(ours, call),
        [*view.encode("two ")[0], *view.encode("tokens")[0][:1]],
        view.encode("👩‍👩‍👧‍👦")[0][:5],
        view.encode("<|im_end|> and <tool_call>")[0],
        [*view.encode("y")[0], *view.encode("o")[0], view.control["<|im_end|>"]],
        [view.control["<|endoftext|>"]],
        [],
    ):
        one = two = None
        for message in news:
            one = instruct.render([message], tools=[TOOL], extend=one, prefill="<tool_call>")
            try:
                two = ours.render([message], tools=[TOOL], extend=two, prefill="<tool_call>")
            except RenderError:
                break  # ours knows that no tool can answer a call that was cut
            assert list(one) == list(two)
            one, two = one.with_sampled(sampled), two.with_sampled(sampled)
            assert list(one.whole()) == list(two.whole())
            assert one.whole().sampled.tolist() == two.whole().sampled.tolist()


def test_reasoning_that_the_template_strips_is_refused(thinking):
    ours = speaker("qwen3")
    prompt = thinking.render([HI])
    thought = encoded(ours, "<think>\nHm.\n</think>\n\nyo<|im_end|>")
    with pytest.raises(
        RenderError, match=r"message 1 \(assistant\).*once message 2 follows.*use the renderer of"
    ):
        thinking.render([HI], extend=prompt.with_sampled(thought))
    following = thinking.render([HI], extend=prompt.with_sampled(reply(speaker("chatml"), "yo")))
    assert ours.tokenizer.decode(following) == (
        "\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    # While tools answer, the template leaves reasoning alone.
    call = "<think>\nHm.\n</think>\n\n<tool_call>\n{}\n</tool_call><|im_end|>"
    answered = prompt.with_sampled(encoded(ours, call))
    assert thinking.render([{"role": "tool", "content": "ok"}], extend=answered)


def test_can_extend(thinking, instruct):
    plain = [HI, {"role": "assistant", "content": "yo"}, HI]
    thought = [HI, {"role": "assistant", "content": "yo", "reasoning_content": "Hm."}, HI]
    assert instruct.can_extend(plain)
    parted = thinking.can_extend(thought)
    assert not parted and parted.message == 1


def test_a_template_that_rewrites_a_prompt_is_refused():
    counts = "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}"
    renderer = own("smollm2", counts)
    with pytest.raises(RenderError, match=r"message \d .*once message 2 follows"):
        renderer.render([HI], extend=renderer.render([HI]).with_sampled([300]))


def test_extension_after_a_given_reply(instruct):
    messages = [HI, {"role": "assistant", "content": "yo"}]
    first = instruct.render(messages)
    whole = instruct.render([*messages, HI])
    assert list(instruct.render([HI], extend=first).whole()) == list(whole)


def test_no_text_of_a_caller_reaches_a_control_id(instruct):
    view = instruct.tokenizer
    plain = None
    for forged in ("x", *view.control, "Qx00001xQ", "Qx99999xQ00001xQ"):
        call = {"function": {"name": forged, "arguments": {forged: forged}}}
        messages = [
            {"role": "system", "content": forged},
            HI | {"content": forged},
            {"role": "assistant", "content": forged, "tool_calls": [call]},
            {"role": "tool", "content": forged},
        ]
        function = {"name": forged, "description": forged, "parameters": {forged: forged}}
        rendered = instruct.render(
            messages, tools=[{"type": "function", "function": function}], prefill=forged
        )
        controls = np.isin(rendered.ids, list(view.control.values())).sum()
        plain = controls if plain is None else plain
        assert controls == plain
        assert view.decode(rendered.ids).count(forged) >= 8


def test_parse(instruct):
    view = instruct.tokenizer
    parsed = instruct.parse([*view.encode(" yo\n")[0], view.control["<|im_end|>"]])
    assert (parsed.message, parsed.stop) == ({"role": "assistant", "content": " yo\n"}, "stop")
    assert instruct.parse([]).stop == "length"
    assert instruct.stop_tokens()[0] == view.control["<|im_end|>"]
    with pytest.raises(RenderError, match="1 ids follow the stop"):
        instruct.parse([instruct.stop_tokens()[0], 300])


def test_what_is_refused(instruct):
    with pytest.raises(RenderError, match="needs a tokenizer with a chat_template, got Tokenizer"):
        get_renderer("hf_template", vocabulary("smollm2"))
    with pytest.raises(RenderError, match="leave them out"):
        get_renderer("hf_template", instruct.source, history="keep")
    with pytest.raises(RenderError, match="at least one message"):
        instruct.render([])
    with pytest.raises(RenderError, match="message 1: role 'bot'"):
        instruct.render([HI, {"role": "bot"}])
    with pytest.raises(RenderError, match="still awaited"):
        instruct.render([HI], extend=instruct.render([HI]))
    with pytest.raises(RenderError, match="written by renderer 'chatml'"):
        instruct.render([HI], extend=speaker("chatml").render([HI]).with_sampled([]))
    with pytest.raises(RenderError, match="message 2 cannot change them"):
        instruct.render([HI], tools=[TOOL], extend=instruct.render([HI]).with_sampled([]))
    with pytest.raises(RenderError, match="the last message is the assistant's"):
        instruct.render([HI, {"role": "assistant", "content": "x"}], prefill="x")
    refusing = own("smollm2", "{{ raise_exception('never') }}")
    with pytest.raises(RenderError, match=r"chat template refuses them .never."):
        refusing.render([HI])


def test_importing_it_loads_no_heavy_library():
    code = (
        "import sys, mintjax.renderers.hf_template; "
        "print([m for m in ('jax', 'torch', 'transformers', 'jinja2') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
