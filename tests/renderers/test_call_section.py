"""Sections of calls: what is a call, what stays in the content, and what is wrong with the rest."""

import pytest

from mintjax.renderers.families.call_section import CallSection, check_object
from mintjax.renderers.pieces import Own, Said
from mintjax.renderers.reading import Part, make_call

MARKS = ("[", "(", ":", ")", "]")
SECTION = CallSection(*MARKS, glue=",")


def read(text):
    """A reply in which every character is a token; calls are a name and arguments."""
    found = [Part(c if c in MARKS else None, (n, n + 1), c) for n, c in enumerate(text)]
    return SECTION.read(found, lambda head, rest: make_call(head, check_object(rest)))


def names(reading):
    return [one.call and one.call["function"]["name"] for one in reading.attempts]


def test_what_is_written_is_read():
    calls = [([Said("f")], [Said("{}")]), ([Said("g")], [Own("{"), Said("}")])]
    text = "".join(piece.text for piece in SECTION.write(calls))
    assert text == "[(f:{}),(g:{})]"
    reading = read(f"a{text}b")
    assert (reading.content, names(reading)) == ("ab", ["f", "g"])
    assert [attempt.span for attempt in reading.attempts] == [(2, 8), (9, 15)]
    assert SECTION.write([]) == []


@pytest.mark.parametrize(
    ("said", "status", "error"),
    [
        ("[(f:{}", "unclosed", "not closed"),
        ("[(f", "unclosed", "not closed"),
        ("[(f:{}]", "malformed", "not closed"),
        ("[", "unclosed", "no tool call stands after ["),
        ("[x]", "malformed", "no tool call stands after ["),
        ("(f:{})", "malformed", "outside ["),
        ("[(f)]", "malformed", "needs one :, and has 0"),
        ("[(f:{}:{})]", "malformed", "needs one :, and has 2"),
        ("[(f:{)]", "malformed", "no JSON"),
        ("[(f:1)]", "malformed", "no JSON object"),
    ],
)
def test_what_cannot_be_read_stays_in_the_content(said, status, error):
    reading = read(f"a{said}")
    assert reading.content == f"a{said}"
    (attempt,) = reading.attempts
    assert (attempt.status, attempt.call) == (status, None)
    assert error in attempt.error
    assert attempt.text in said


def test_good_calls_beside_bad_ones():
    reading = read("a[(f:{}),(g:1)x,(h:{})]b")
    assert (reading.content, names(reading)) == ("a(g:1)xb", ["f", None, "h"])
    two = read("[(f:{}(g:{})]")
    assert (two.content, names(two)) == ("(f:{}", [None, "g"])


@pytest.mark.parametrize(
    "text",
    ['{"x": NaN}', '{"x": 1e999}', '{"x": "\\ud800"}', "[" * 100_000, "{" + "9" * 5000, "[]", ""],
)
def test_arguments_that_are_no_object(text):
    with pytest.raises(ValueError):
        check_object(text)


def test_arguments_stay_as_they_were_said():
    assert check_object(' {"b":1.0, "a":"é"}\n') == ' {"b":1.0, "a":"é"}\n'
