"""A rendering is a sequence of its own ids, linked to what stands before it."""

import sys

import numpy as np
import pytest

from mintjax.renderers import RenderError, Source, get_renderer
from tests.assets import vocabulary

HI = {"role": "user", "content": "hi"}


@pytest.fixture
def qwen():
    return get_renderer("qwen3_instruct", vocabulary("qwen3"))


def test_a_prompt_token_by_token(qwen):
    prompt = qwen.render([HI], prefill="Sure")
    assert list(prompt) == [151644, 872, 198, 6023, 151645, 198, 151644, 77091, 198, 39814]
    assert prompt.message.tolist() == [0, 0, 0, 0, 0, 0, 1, 1, 1, 1]
    header, glue = [Source.HEADER] * 3, [Source.GLUE] * 2
    expected = [*header, Source.CONTENT, *glue, *header, Source.PREFILL]
    assert prompt.source.tolist() == expected
    assert not prompt.sampled.any()
    assert prompt.weights.dtype == np.float32 and not prompt.weights.any()
    assert prompt.start == 0 and prompt.before is None


def test_it_is_a_sequence_of_ints(qwen):
    prompt = qwen.render([HI])
    assert [type(prompt[0]), type(next(iter(prompt)))] == [int, int]
    assert prompt[3:5] == [6023, 151645]
    assert len(prompt) == 9 and 151644 in prompt and prompt.index(6023) == 3


def test_with_sampled_copies_nothing(qwen):
    prompt = qwen.render([HI])
    sampled = np.array([6023, 151645], np.int32)
    answered = prompt.with_sampled(sampled)
    assert np.shares_memory(answered.ids, sampled)
    assert answered.before is prompt
    assert answered.start == len(prompt)
    assert answered.sampled.all() and answered.message.tolist() == [1, 1]
    assert (answered.source == Source.SAMPLED).all()
    # Read-only here; the caller's array stays as it was.
    assert not answered.ids.flags.writeable and sampled.flags.writeable


def test_one_prompt_branches(qwen):
    prompt = qwen.render([HI])
    one, two = prompt.with_sampled([6023, 151645]), prompt.with_sampled([])
    assert list(one.whole()) == [*prompt, 6023, 151645]
    assert list(two.whole()) == list(prompt)
    assert qwen.render([HI], extend=two)[0] == 151645
    assert qwen.render([HI], extend=one)[0] == 198


def test_supervised_marks_are_what_would_be_sampled(qwen):
    rendered = qwen.render([HI, {"role": "assistant", "content": "yo"}, HI])
    assert rendered.ids[rendered.sampled].tolist() == [*qwen.tokenizer.encode("yo")[0], 151645]
    # The template merges a reply's leading newline with the header's: no policy can emit that id.
    merged = qwen.render([HI, {"role": "assistant", "content": "\nyo"}])
    assert merged.ids[merged.sampled].tolist() == [*qwen.tokenizer.encode("yo")[0], 151645]


def test_a_default_system_prompt_belongs_to_no_message():
    rendered = get_renderer("smollm2", vocabulary("smollm2")).render([HI])
    first = rendered.message.tolist().index(0)
    assert (rendered.message[:first] == -1).all() and rendered[first] == 1


def test_a_long_conversation_joins_without_recursion(qwen):
    rendered = qwen.render([HI])
    for _ in range(sys.getrecursionlimit() // 2 + 1):
        rendered = qwen.render([HI], extend=rendered.with_sampled([151645]))
    assert len(rendered.whole()) == rendered.start + len(rendered)


def test_rendering_the_same_twice_gives_the_same_cursor(qwen):
    assert qwen.render([HI]).cursor == qwen.render([HI]).cursor
    with pytest.raises(RenderError):
        qwen.render([HI], extend=qwen.render([HI]))
