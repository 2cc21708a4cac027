"""What a reply says, read off its ids, is what its text says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from mintjax.renderers import get_renderer
from mintjax.train.environments.count_down import expected_reply
from mintjax.train.reply_text import said
from mintjax.train.spoken_words import SpokenWordsError, check_words, spoken_words
from tests.tiny import tiny_tokenizer

LISTS = {
    "numbers": [str(number) for number in range(1, 17)],
    "steps": ["up", "down", "left", "right"],
    "counts": [expected_reply(number) for number in range(1, 7)],
    "one begins another": ["a", "a b", "A bc", "go"],
}
SIZE = 24


def merged() -> Tokenizer:
    """A vocabulary in which some tokens are several characters, of words, of their ends, and of what stands around them."""
    pairs = [
        ("u", "p"),
        ("Ġ", "up"),
        ("d", "o"),
        ("w", "n"),
        ("do", "wn"),
        ("Ċ", "do"),
        ("f", "t"),
        ("1", "2"),
        (",", "Ġ"),
    ]
    alphabet = [*(chr(code) for code in range(33, 127)), "Ġ", "Ċ"]
    tokens = [*alphabet, *(a + b for a, b in pairs)]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True, normalized=False) for name in names]
    )
    return tokenizer


@pytest.fixture(scope="module")
def renderers():
    """Of a vocabulary of single characters, and of one with longer tokens."""
    made = {"characters": tiny_tokenizer(), "merged": merged()}
    return {name: get_renderer("chatml", tokenizer) for name, tokenizer in made.items()}


@pytest.mark.parametrize(
    ("tokens", "name"), [(tokens, name) for tokens in ("characters", "merged") for name in LISTS]
)
def test_ids_say_what_their_text_says(renderers, tokens, name):
    words, renderer = LISTS[name], renderers[tokens]
    view = renderer.tokenizer
    compiled = spoken_words(renderer, words)
    stops = renderer.stop_tokens()
    random = np.random.default_rng(0)
    texts = [
        f"{a}{word}{b}" for word in words for a in ("", " \n", "1") for b in ("", "\t ", "!", " b")
    ]
    texts += [word.upper() for word in words] + [
        "",
        " ",
        "\u00a0up",
        "\uff35p",
        "\u212a",
        "\u00e9",
        "2\u2003",
    ]
    replies = [view.encode(text)[0] for text in texts]
    # Every cut of a text into tokens counts, not only the one that encoding gives.
    replies += [[token for c in text for token in view.encode(c)[0]] for text in texts]
    replies += [random.integers(0, view.size, 4).tolist() for _ in range(20)]
    replies = [[token for token in reply if token not in stops] for reply in replies]
    replies += [[*reply, stop] for reply in replies for stop in stops]
    replies = [reply for reply in replies if len(reply) <= SIZE]
    ids = np.full((len(replies), SIZE), -1, np.int32)
    for row, reply in zip(ids, replies, strict=True):
        row[: len(reply)] = reply
    lengths = np.array([len(reply) for reply in replies], np.int32)
    found = jax.vmap(compiled.read)(jnp.asarray(ids), jnp.asarray(lengths))
    wanted = [said(renderer.parse(reply).message["content"], words) for reply in replies]
    assert found.tolist() == wanted
    assert set(wanted) == {-1, *range(len(words))}


def test_ids_past_the_vocabulary_say_nothing(renderers):
    renderer = renderers["characters"]
    compiled = spoken_words(renderer, ["1"])
    (one,) = renderer.tokenizer.encode("1")[0]
    past = renderer.tokenizer.size + 3
    assert compiled.read(jnp.array([one, -1]), jnp.int32(1)) == 0
    assert compiled.read(jnp.array([one, past]), jnp.int32(2)) == -1


def test_words_by_hand():
    assert [said(text, ["up", "down"]) for text in (" UP\n", "down.", "d own", "")] == [
        0,
        -1,
        -1,
        -1,
    ]


def test_a_table_that_reads_wrongly_is_refused():
    renderer = get_renderer("chatml", tiny_tokenizer())
    compiled = spoken_words(renderer, ["up", "down"])
    swapped = compiled.replace(values=jnp.where(compiled.values >= 0, 1 - compiled.values, -1))
    with pytest.raises(
        SpokenWordsError, match=r"says 'up', word 0, and its ids are read as word 1"
    ):
        check_words(renderer, swapped)


@pytest.mark.parametrize("words", [["up", " down"], [""], ["größer"], ["up", "UP"]])
def test_words_that_cannot_be_told_apart_are_refused(words):
    with pytest.raises(SpokenWordsError, match="words: expected"):
        spoken_words(get_renderer("chatml", tiny_tokenizer()), words)
