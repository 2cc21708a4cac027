import io
import json
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from rich.console import Console

from mintjax.train.advantages import Advantages
from mintjax.train.durable import read_rows, write_rows
from mintjax.train.transcripts import episode_rows, to_html, to_text
from mintjax.types import Episode, Turn

HOSTILE = "</script><script>alert(1)</script>[red]&amp;</pre>\"'"
EVIL = 256


def decode(ids):
    """Token ids are bytes; one token more is a whole hostile text."""
    if EVIL in ids:
        place = list(ids).index(EVIL)
        return decode(ids[:place]) + HOSTILE + decode(ids[place + 1 :])
    return bytes(ids).decode("utf-8", errors="replace")


def turn(put_in, sampled, reward):
    tokens = list(put_in.encode()) + list(sampled)
    marks = np.arange(len(tokens)) >= len(put_in.encode())
    return Turn(
        tokens=np.array(tokens, np.int32),
        sampled=marks,
        logprobs=np.where(marks, -0.25, np.nan).astype(np.float32),
        temperature=1.0,
        messages=({"role": "user", "content": put_in},),
        reward=reward,
        decode_stop="stop",
        metrics={"exact": float("nan")},
    )


@pytest.fixture
def rows():
    first = Episode((turn("hi ", b"one", 0.5), turn("go ", [EVIL], None)), 0, 0, "done", None, 7)
    second = Episode(
        (turn(f"é {HOSTILE} ", "é🙂".encode()[:-1], 1.0),),
        1,
        0,
        "error",
        "ValueError: <b>[blue]",
        7,
    )
    advantages = Advantages(
        (np.array([0.125, 9.0]), np.array([0.0])),
        (np.array([True, False]), np.array([True])),
        {0: True, 1: True},
    )
    return episode_rows(10, [first, second], advantages)


class Page(HTMLParser):
    """The marked text, all text and all tags of a page."""

    def __init__(self, page):
        super().__init__()
        self.text, self.marked, self.titles, self.tags, self.inside = "", "", [], set(), False
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.inside = self.inside or tag == "mark"
        self.titles += [value for name, value in attributes if name == "title"]

    def handle_endtag(self, tag):
        self.inside = self.inside and tag != "mark"

    def handle_data(self, data):
        self.text += data
        self.marked += data if self.inside else ""


def test_rows_hold_every_token_and_null_where_there_is_nothing(rows, tmp_path):
    write_rows(tmp_path / "step_000010.jsonl", rows)
    row = read_rows(tmp_path / "step_000010.jsonl")[0]
    assert row == json.loads(json.dumps(rows[0]))
    assert (row["step"], row["group"], row["member"], row["policy_version"]) == (10, 0, 0, 7)
    assert (row["reward"], row["stop_reason"], row["error"]) == (0.5, "done", None)
    first, second = row["turns"]
    assert decode(first["tokens"]) == "hi one"
    assert first["sampled"] == [False] * 3 + [True] * 3
    assert first["logprobs"] == [None] * 3 + [-0.25] * 3
    assert first["advantages"] == [None] * 3 + [0.125] * 3
    assert first["messages"] == [{"role": "user", "content": "hi "}]
    assert first["metrics"] == {"exact": None}
    # The second turn has no reward, and so no advantage: null, not 0.
    assert second["reward"] is None
    assert set(second["advantages"]) == {None}
    # An advantage of 0 that was trained on is a 0.
    assert rows[1]["turns"][0]["advantages"][-1] == 0.0


def test_a_seat_and_a_reply_that_cannot_be_read_are_told():
    broken = replace(turn("hi ", b"x", None), parse_error="no JSON")
    (row,) = episode_rows(0, [Episode((broken,), 0, 2, "over", None, 0, seat=1)])
    assert (row["seat"], row["turns"][0]["parse_error"]) == (1, "no JSON")
    assert to_text(row, decode).plain.startswith("group 0, seat 1, member 2: reward none")
    assert "group 0, seat 1, member 2" in to_html([row], decode, title="t")


def test_an_evaluation_has_no_advantages():
    episode = Episode((turn("a", b"b", 1.0),), 0, 0, "done", None, 0)
    assert episode_rows(0, [episode])[0]["turns"][0]["advantages"] == [None, None]


def test_a_page_shows_hostile_text_and_runs_none_of_it(rows):
    source = to_html(rows, decode, title="run <script>")
    page = Page(source)
    assert "script" not in page.tags
    assert "<script" not in source
    # Once as the policy's words, once as the environment's.
    assert page.text.count(HOSTILE) == 2
    assert "run <script>" in page.text
    assert "ValueError: <b>[blue]" in page.text
    assert "b" not in page.tags


def test_a_page_marks_sampled_tokens_and_nothing_else(rows):
    page = Page(to_html(rows, decode, title="t"))
    legend = "marked text"
    # The cut emoji is three tokens that are no character: one mark, as it was sampled.
    assert page.marked == legend + "one" + HOSTILE + "é" + "\N{REPLACEMENT CHARACTER}"
    assert "token 111, logprob -0.25, advantage 0.125" in page.titles
    assert (
        "token 195, logprob -0.25, advantage 0; token 169, logprob -0.25, advantage 0"
        in page.titles
    )
    assert "turn 1: reward 0.5, advantage 0.125, sampling ended by stop" in page.text
    assert "group 0, member 0: reward 0.5, stopped by done" in page.text
    assert "turn 2: reward none" in page.text


def test_a_page_loads_nothing_from_elsewhere(rows):
    source = to_html(rows, decode, title="t")
    assert "http" not in source
    assert not {"link", "img", "iframe"} & Page(source).tags


def test_a_terminal_shows_marks_and_reads_no_markup(rows):
    text = to_text(rows[0], decode)
    assert f"go ⟦{HOSTILE}⟧" in text.plain
    assert "hi ⟦one⟧" in text.plain
    output = io.StringIO()
    Console(file=output, width=200, force_terminal=False).print(text)
    assert HOSTILE in output.getvalue()
    coloured = io.StringIO()
    Console(file=coloured, width=200, force_terminal=True, color_system="standard").print(text)
    assert "\x1b[1;34m⟦one⟧\x1b[0m" in coloured.getvalue()
