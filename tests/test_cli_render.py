"""`mintjax render`: every token once, what was said escaped, files that cannot be used refused."""

import json
from html.parser import HTMLParser

import pytest

import mintjax
from mintjax.cli import main
from mintjax.cli.token_page import to_page
from mintjax.cli.token_view import tokens_of, visible
from mintjax.renderers import Source, get_renderer
from tests.assets import vocabulary

HOSTILE = '<script>alert("&")</script> </div> \x1b[31m <|im_end|>\n👩‍👩‍👧‍👦 {x}'
TALK = [
    {"role": "system", "content": HOSTILE},
    {"role": "user", "content": HOSTILE},
    {"role": "assistant", "content": HOSTILE},
]


class Page(HTMLParser):
    """The tokens of a page, and what it would load or run."""

    def __init__(self, page):
        super().__init__()
        self.tokens, self.tags, self.text, self._in = [], [], [], False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append(tag)
        assert not {"src", "href", "onload", "onclick"} & given.keys()
        if "data-id" in given:
            self.tokens.append((int(given["data-id"]), given["class"], given["data-tip"]))
            self._in = True

    def handle_endtag(self, tag):
        self._in &= tag != "span"

    def handle_data(self, data):
        if self._in:
            self.text.append(data)


@pytest.fixture
def renderer():
    return get_renderer("qwen3_instruct", vocabulary("qwen3"))


@pytest.fixture(autouse=True)
def tokenizers(monkeypatch):
    """The command loads the vocabulary of the tests, whichever is asked for."""
    monkeypatch.setattr(mintjax, "load_tokenizer", lambda name: vocabulary("qwen3"))


def test_every_token_stands_once_on_the_page(renderer):
    rendered = renderer.render([*TALK, TALK[1]], prefill="Sure")
    answered = rendered.with_sampled([6023, 151645]).whole()
    page = to_page(
        [tokens_of(answered, renderer.tokenizer.decode)],
        ["system", "user", "assistant", "user"],
        title="<b>",
    )
    read = Page(page)
    assert [token for token, _, _ in read.tokens] == list(answered)
    for place, (token, classes, tip) in enumerate(read.tokens):
        source = Source(answered.source[place]).name.lower()
        assert classes == source + " trains" * bool(answered.sampled[place])
        assert tip.startswith(f"token {place}, id {token}: {source}, message ")
        assert f"message {answered.message[place]}," in tip
    assert {classes.split()[0] for _, classes, _ in read.tokens} == {
        source.name.lower() for source in Source
    }
    # What was said is on the page as text, and nothing of it is markup.
    said = "".join(read.text).replace("⏎", "").replace("·", "")
    assert said == visible(renderer.tokenizer.decode(answered.ids))
    assert "script" not in read.tags and read.tags.count("b") == 7
    assert "&lt;" in page and "\x1b" not in page


def test_the_command_prints_and_writes_a_page(renderer, tmp_path, capsys):
    file, page = tmp_path / "talk.json", tmp_path / "page.html"
    tool = {"type": "function", "function": {"name": "f", "description": "[bold]"}}
    file.write_text(json.dumps({"messages": TALK, "tools": [tool]}))
    command = ["render", str(file), "--renderer", "qwen3_instruct", "--html", str(page)]
    assert main([*command, "--train-on", "all_assistant_messages"]) == 0
    (expected,) = renderer.supervised(TALK, tools=[tool], train_on="all_assistant_messages")
    read = Page(page.read_text())
    assert [token for token, _, _ in read.tokens] == list(expected)
    trains = [index for index, (_, classes, _) in enumerate(read.tokens) if "trains" in classes]
    assert trains == expected.weights.nonzero()[0].tolist()
    printed = capsys.readouterr().out
    for heading in ("message 0, system\n", "message 1, user\n", "message 2, assistant\n"):
        assert heading in printed
    assert '<script>alert("&")</script>' in printed and '"description": "[bold]"' in printed
    assert "\x1b" not in printed


def test_a_bare_list_ends_with_the_prompt(renderer, tmp_path, capsys):
    file = tmp_path / "talk.json"
    file.write_text(json.dumps([{"role": "user", "content": "hi"}]))
    assert main(["render", str(file), "--renderer", "qwen3_instruct", "--prefill", "Well"]) == 0
    assert capsys.readouterr().out == (
        "header content format glue prefill sampled trains\n\n"
        "message 0, user\n<|im_start|>user⏎\nhi<|im_end|>⏎\n"
        "message 1, assistant, to come\n<|im_start|>assistant⏎\nWell\n"
    )


@pytest.mark.parametrize(
    ("written", "options", "message"),
    [
        (None, [], "talk.json: No such file or directory; name a JSON file that holds a list of"),
        ("{", [], "talk.json: no JSON (Expecting property name"),
        (
            '{"message": []}',
            [],
            "talk.json: unknown key 'message'; expected a list of messages, or",
        ),
        (
            '{"messages": "hi"}',
            [],
            "talk.json: messages: expected a list, got str; write a list of",
        ),
        ('"hi"', [], "talk.json: messages: expected a list, got str"),
        ("[]", [], "messages: expected a list of at least one message, got []"),
        ('[{"role": "bot"}]', [], "message 0: role 'bot' is unknown; use system,"),
        ("[]", ["--renderer", "qwen33"], "renderer 'qwen33' is unknown; did you mean 'qwen3'?"),
        (
            "[]",
            ["--renderer", "chatml"],
            "--tokenizer: no model is known whose vocabulary 'chatml'",
        ),
        (
            "[]",
            ["--train-on", "all_tokens", "--prefill", "x"],
            "--prefill: nothing is sampled with",
        ),
    ],
)
def test_what_cannot_be_shown_is_one_line(tmp_path, capsys, written, options, message):
    file = tmp_path / "talk.json"
    if written is not None:
        file.write_text(written)
    assert main(["render", str(file), "--renderer", "qwen3_instruct", *options]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    [line] = captured.err.splitlines()
    assert line.startswith("mintjax: error: ") and message in line
