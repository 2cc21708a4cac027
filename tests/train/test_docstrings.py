import pytest

from mintjax.train.docstrings import parse_docstring

DESCRIPTION = "Moves a piece.\n\nOver others, too."
PARAMETERS = {"piece": "What to move, by its letter.", "far": "How far (e.g.: 3)."}

GOOGLE = """Moves a piece.

    Over others, too.

    Args:
        piece: What to move,
            by its letter.
        far (int, optional): How far (e.g.: 3).

    Returns:
        result: The new square.

    Raises:
        ValueError: never.
"""

NUMPY = """
    Moves a piece.

    Over others, too.

    Parameters
    ----------
    piece : str
        What to move,
        by its letter.
    far : int, default 1
        How far (e.g.: 3).

    Returns
    -------
    result : str
        The new square.
"""

REST = """Moves a piece.

    Over others, too.

    :param str piece: What to move,
        by its letter.
    :param far: How far (e.g.: 3).
    :type far: int
    :returns: The new square.
    :raises ValueError: never.
"""


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, REST], ids=["google", "numpy", "rest"])
def test_three_ways_of_writing_say_the_same(text):
    assert parse_docstring(text) == (DESCRIPTION, PARAMETERS)


@pytest.mark.parametrize(
    ("text", "description", "parameters"),
    [
        ("", "", {}),
        ("Looks: around.", "Looks: around.", {}),
        ("Looks.\n\nArgs:\n", "Looks.", {}),
        ("Looks.\n\nReturns:\n    x: A text.", "Looks.", {}),
        ("Looks.\n\nParameters\n----------\na, b : int\n    Both.", "Looks.", dict.fromkeys("ab", "Both.")),
        ("Args:\n    a: Alone.", "", {"a": "Alone."}),
    ],
)  # fmt: skip
def test_what_is_not_there_is_empty(text, description, parameters):
    assert parse_docstring(text) == (description, parameters)
