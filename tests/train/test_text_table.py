"""Tables of texts are what the renderer writes, after replies that ended in every way, or they are refused."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from mintjax.renderers import get_renderer
from mintjax.train.text_table import TextTableError, check_texts, text_table
from tests.tiny import tiny_tokenizer


def user(text):
    return {"role": "user", "content": text}


OPENINGS = [[{"role": "system", "content": "Be brief."}, user("Say yes.")], [user("Hello")]]
ANSWERS = [[user("Again.")], [user("More, please."), user("Now.")]]


@pytest.fixture(scope="module")
def renderer():
    return get_renderer("chatml", tiny_tokenizer())


@pytest.fixture(scope="module")
def table(renderer):
    return text_table(renderer, OPENINGS, ANSWERS)


def ids_of(news):
    return np.asarray(news.tokens)[: int(news.length)].tolist()


def padded(reply, size=24):
    ids = np.full(size, -1, np.int32)
    ids[: len(reply)] = reply
    return jnp.asarray(ids), jnp.int32(len(reply))


def test_rows_are_what_the_renderer_writes(renderer, table):
    view = renderer.tokenizer
    hello = view.encode("Yes, of course.")[0]
    endings = [[view.control["<|im_end|>"]], [view.control["<|endoftext|>"]], []]
    for row, messages in enumerate(OPENINGS):
        begun = renderer.render(messages)
        assert ids_of(table.opening(jnp.int32(row))) == list(begun)
        for reply in ([*hello, *ending] for ending in endings):
            assert bool(table.ended(*padded(reply))) == (reply != hello)
            for place, answer in enumerate(ANSWERS):
                written = renderer.render(answer, extend=begun.with_sampled(reply))
                news = table.after(jnp.int32(place), *padded(reply))
                assert ids_of(news) == list(written) and int(news.row) == place
    glue = [ids_of(table.after(jnp.int32(0), *padded([*hello, *ending])))[:2] for ending in endings]
    assert glue[1] == glue[2] != glue[0], "a reply without the format's stop is closed by it"
    assert not table.ended(*padded([]))


def test_rows_that_there_are_not_say_nothing(table):
    """A look-up past the end of an array would give its last row."""
    for row in (-1, 2):
        assert int(table.opening(jnp.int32(row)).length) == 0
        assert int(table.after(jnp.int32(row), *padded([5])).length) == 0


def test_a_table_that_differs_from_the_renderer_is_refused(renderer, table):
    check_texts(renderer, table)
    changed = table.replace(opening_tokens=table.opening_tokens.at[1, 3].add(1))
    with pytest.raises(TextTableError, match=r"openings\[1\]: the table has .*renderer writes"):
        check_texts(renderer, changed)
    for ending in range(3):
        changed = table.replace(answer_tokens=table.answer_tokens.at[ending, 1, 4].add(1))
        with pytest.raises(TextTableError, match=r"answers\[1\] after the reply"):
            check_texts(renderer, changed)
        changed = table.replace(answer_lengths=table.answer_lengths.at[ending, 0].add(-1))
        with pytest.raises(TextTableError, match=r"answers\[0\] after the reply"):
            check_texts(renderer, changed)
    with pytest.raises(TextTableError, match=r"answers\[0\] .* Make the table anew"):
        check_texts(replace(renderer, form=Counting()), table)


class Counting(type(get_renderer("chatml").form)):
    """Writes after a reply how long it was: more than a table by its last id can know."""

    def mend(self, body, tokenizer, begins):
        return "." * (len(body) % 3)


def test_formats_that_a_table_cannot_hold_are_refused(renderer):
    with pytest.raises(TextTableError, match="depends on more than its last id: play on the host"):
        text_table(replace(renderer, form=Counting()), OPENINGS, ANSWERS)
    text_ended = get_renderer("role_colon", tiny_tokenizer())
    with pytest.raises(TextTableError, match=r"'role_colon' ends a reply with the text .*User:"):
        text_table(text_ended, OPENINGS, ANSWERS)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (
            [user("x"), {"role": "assistant", "content": "y"}],
            "a last message that the policy answers",
        ),
        ([], "a last message that the policy answers"),
        ([{"role": "user", "content": [{"type": "text", "text": "x"}]}], "role and text alone"),
        ([{"role": "tool", "content": "x", "tool_call_id": "1"}], "role and text alone"),
    ],
)
def test_messages_that_a_table_cannot_hold_are_refused(renderer, answer, expected):
    with pytest.raises(TextTableError, match=rf"answers\[1\]: expected .*{expected}"):
        text_table(renderer, OPENINGS, [ANSWERS[0], answer])
