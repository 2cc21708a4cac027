"""What a reply says, read off its text on the host; `mintjax.train.spoken_words` reads the same off ids."""

from collections.abc import Sequence

WHITE = " \t\n\r\v\f"
NOTHING = -1  # what a reply says that says none of the words


def said(text: str, words: Sequence[str]) -> int:
    """Which of a list of words a text is, but for ASCII white space around it and the case of ASCII letters.

    Args:
        text: of the reply, its stop not included.
        words: to look for.

    Returns:
        Number of the word, -1 where it is none of them.

    Example:
        >>> said(" Up", ["up", "down"])
        0
    """
    bare = lower(text.strip(WHITE))
    return next((n for n, word in enumerate(words) if lower(word) == bare), NOTHING)


def lower(text: str) -> str:
    """The text with its ASCII letters in lower case; of others, some become several characters.

    Example:
        >>> lower("UP")
        'up'
    """
    return "".join(c.lower() if c.isascii() else c for c in text)
