"""Which of a list of words a reply says, read off its ids inside jit as it is read off its text on the host.

A reply says a word where its text is that word, but for white space around it and the case of its letters. The words make
a finite automaton over characters. Each token of the vocabulary is a run of characters, so it takes every state of the
automaton to another one; tokens that do so alike are one class, and few classes are left. Reading a reply is then a
table look-up an id, whatever ids its text is made of.
"""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax
from jaxtyping import Array, Int, Int32

from mintjax.renderers import Renderer
from mintjax.train.reply_text import NOTHING, WHITE, lower, said


class SpokenWordsError(ValueError):
    """Words that replies cannot be read by; the text names the word, or the ids that are read wrongly, and the cure."""


class SpokenWords(struct.PyTreeNode):
    """The words, compiled for a vocabulary of V tokens; made by :func:`spoken_words`.

    Attributes:
        words: in the order that they are numbered in. Static.
        classes: class of each token, and of one that the vocabulary does not have.
        moves: state that a class of tokens leads to, from each state; 0 is the first.
        values: number of the word that a reply says which ends in a state, -1 for none.
        stops: the stop tokens, which are no part of what is said.
    """

    words: tuple[str, ...] = struct.field(pytree_node=False)
    classes: Int32[Array, " V+1"]
    moves: Int32[Array, "C Q"]
    values: Int32[Array, " Q"]
    stops: Int32[Array, " n"]

    def read(self, ids: Int32[Array, " M"], length: Int[Array, ""]) -> Int32[Array, ""]:
        """What a reply says.

        Args:
            ids: the reply, its stop token included.
            length: how many ids are real.

        Returns:
            Number of the word, -1 where it says none of them.

        Example:
            >>> found = words.read(ids, length) == secret
        """
        last = ids[jnp.maximum(length - 1, 0)]
        body = length - ((length > 0) & jnp.isin(last, self.stops))
        unknown = self.classes.shape[0] - 1

        def move(place: Array, state: Array) -> Array:
            return self.moves[self.classes[jnp.minimum(ids[place], unknown)], state]

        return self.values[lax.fori_loop(0, body, move, jnp.int32(0))]


def spoken_words(renderer: Renderer, words: Sequence[str]) -> SpokenWords:
    """Compiles words for a renderer's vocabulary, and holds what is read off ids against what is read off their text.

    Args:
        renderer: bound to the policy's tokenizer.
        words: different ones, of ASCII characters, without white space around them.

    Returns:
        The compiled words.

    Raises:
        SpokenWordsError: where a word cannot be looked for, or the renderer reads a reply in another way.

    Example:
        >>> words = spoken_words(renderer, ["up", "down", "left", "right"])
    """
    view = renderer.tokenizer
    assert view is not None
    for word in words:
        if not word or not word.isascii() or word != word.strip(WHITE):
            raise SpokenWordsError(
                f"words: expected ASCII characters without white space around them, came {word!r}"
            )
    if len({lower(word) for word in words}) < len(words):
        raise SpokenWordsError(f"words: expected different ones, came {list(words)}")
    alphabet, by_character, values = _automaton([lower(word) for word in words])
    places = {character: place for place, character in enumerate(alphabet)}
    texts = [view.decode([token]) for token in range(view.size)] + ["\ufffd"]
    spelled = [tuple(places.get(c, len(alphabet)) for c in lower(text)) for text in texts]
    kinds = {run: kind for kind, run in enumerate(dict.fromkeys(spelled))}
    rows = np.stack([_along(by_character, run) for run in kinds])
    moves, classes = np.unique(rows, axis=0, return_inverse=True)
    kind_of = np.array([kinds[run] for run in spelled])
    compiled = SpokenWords(
        words=tuple(words),
        classes=jnp.asarray(classes.reshape(-1)[kind_of], jnp.int32),
        moves=jnp.asarray(moves, jnp.int32),
        values=jnp.asarray(values, jnp.int32),
        stops=jnp.asarray(renderer.stop_tokens(), jnp.int32),
    )
    check_words(renderer, compiled)
    return compiled


def check_words(renderer: Renderer, words: SpokenWords) -> None:
    """Holds what is read off ids against what the renderer's text says, for words spelled in several ways and random ids.

    Raises:
        SpokenWordsError: naming the ids, and what both say.

    Example:
        >>> check_words(renderer, words)
    """
    view = renderer.tokenizer
    assert view is not None
    classes, moves, values = (np.asarray(x) for x in (words.classes, words.moves, words.values))
    random = np.random.default_rng(0)
    stops = renderer.stop_tokens()
    others = np.setdiff1d(np.arange(view.size), stops)
    # Tokens of a class of their own are those that words are made of.
    made_of = [
        token for token in others if np.count_nonzero(classes == classes[token]) < view.size // 2
    ]
    replies = [
        view.encode(f"{before}{word}{after}")[0]
        for word in words.words
        for before, after in (("", ""), (" ", ""), ("", "\n"), ("", "."))
    ]
    replies += [
        random.choice(tokens, count).tolist()
        for tokens in (others, made_of or others)
        for count in (1, 1, 2, 2, 3, 3, 5, 8)
    ]
    for reply in replies:
        state = 0
        for token in reply:
            state = moves[classes[token], state]
        content = renderer.parse([*reply, stops[0]]).message["content"]
        if (by_text := said(str(content), words.words)) != values[state]:
            raise SpokenWordsError(
                f"words: the reply {reply} says {content!r}, word {by_text}, and its ids are read as word "
                f"{values[state]}. This vocabulary's text is not that of its tokens one after the other, or the format "
                f"reads more than text: play on the host (rollout.where=host)"
            )


def _automaton(words: Sequence[str]) -> tuple[str, np.ndarray, np.ndarray]:
    """The characters that matter, the state that each leads to from each state (the last row: any other), and what a state says."""
    prefixes = sorted({word[:n] for word in words for n in range(len(word) + 1)}, key=len)
    # After the prefixes: one state a word for white space after it, and one that nothing leaves.
    states = {prefix: state for state, prefix in enumerate(prefixes)}
    done = {word: len(states) + n for n, word in enumerate(words)}
    lost = len(states) + len(done)
    alphabet = "".join(sorted({*WHITE, *"".join(words)}))
    values = np.full(lost + 1, NOTHING)
    moves = np.full((len(alphabet) + 1, lost + 1), lost)
    for prefix, state in states.items():
        ended = prefix.rstrip(WHITE)
        if ended in done:
            values[state] = words.index(ended)
        for place, character in enumerate(alphabet):
            white = character in WHITE
            if prefix + character in states:
                moves[place, state] = states[prefix + character]
            elif white and (not prefix or ended in done):
                moves[place, state] = done[ended] if prefix else state
    for word, state in done.items():
        values[state] = words.index(word)
        moves[[alphabet.index(character) for character in WHITE], state] = state
    return alphabet, moves, values


def _along(moves: np.ndarray, run: Sequence[int]) -> np.ndarray:
    """The state that each state leads to along a run of characters."""
    state = np.arange(moves.shape[1])
    for character in run:
        state = moves[character, state]
    return state
