"""Documents laid out as rows: several in one row that do not see each other, or each in a row of its own."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int32

from mintjax.train.batches import Batch, padded_length


class Document(NamedTuple):
    """A token stream to train on.

    Attributes:
        tokens: the stream.
        weights: what each token counts; 0 is not trained, as the first one must be.
    """

    tokens: Int32[np.ndarray, " N"]
    weights: Float32[np.ndarray, " N"]


# Documents that a loss compares, such as a chosen and a rejected reply; one alone where it compares none.
Example = tuple[Document, ...]


def lay_out(
    examples: Sequence[Example],
    *,
    rows: int,
    row_tokens: int,
    packing: bool = True,
    size: int | None = None,
) -> list[Batch]:
    """Lay examples out as micro-batches, whose losses are to be summed.

    Packing is first fit, the longest examples first (Johnson, 1973: at most 11/9 of the rows that the best packing
    needs, and one more). An example stays in one row. Without packing each document has a row, and those of an example stand
    side by side in one micro-batch.

    Args:
        examples: with weights that are normalised already.
        rows: B of every micro-batch, without packing a multiple of the documents of an example. Where half of them hold the
            last rows, they do, and so on; then that micro-batch is filled up with empty rows.
        row_tokens: most tokens in a row.
        packing: whether documents share rows.
        size: N of every micro-batch; None is the longest row's padded length (:func:`padded_length`).

    Returns:
        The micro-batches, the fullest rows first, with ``starts`` where documents share rows.

    Raises:
        ValueError: where an example does not fit in a row, or rows would part one.

    Example:
        >>> batches = lay_out(examples, rows=4, row_tokens=2048)
        >>> batches[0].tokens.shape
        (4, 2048)
    """
    together = 1 if packing else max(map(len, examples), default=1)
    if rows % together:
        raise ValueError(
            f"rows: expected a multiple of the {together} documents of an example, which stand side by side, got {rows}"
        )
    check_fits(examples, row_tokens, packing=packing)
    filled = _packed(examples, row_tokens) if packing else _apart(examples)
    batches = []
    for first in range(0, len(filled), rows):
        here = filled[first : first + rows]
        longest = max(sum(len(document.tokens) for document in row) for row in here)
        count = rows
        while count % (2 * together) == 0 and count // 2 >= len(here):
            count //= 2
        batches.append(_batch(here, count, size or padded_length(longest), packing))
    return batches


def check_fits(examples: Sequence[Example], row_tokens: int, *, packing: bool = True) -> None:
    """Refuses an example that is longer than a row.

    Args:
        examples: any.
        row_tokens: most tokens in a row.
        packing: whether all documents of an example share a row.

    Raises:
        ValueError: where one does not fit.

    Example:
        >>> check_fits(examples, 2048)
    """
    for number, example in enumerate(examples):
        length = _length(example) if packing else _longest(example)
        if length > row_tokens:
            raise ValueError(
                f"gradients.row_tokens: example {number} has {length} tokens, and a row {row_tokens}; raise "
                f"gradients.row_tokens, or shorten the example"
            )


def _packed(examples: Sequence[Example], row_tokens: int) -> list[list[Document]]:
    """Rows of documents, the fullest first."""
    filled: list[list[Document]] = []
    room: list[int] = []
    for example in sorted(examples, key=_length, reverse=True):
        length = _length(example)
        row = next((i for i, left in enumerate(room) if left >= length), len(room))
        if row == len(room):
            filled.append([])
            room.append(row_tokens)
        filled[row] += example
        room[row] -= length
    return [filled[i] for i in sorted(range(len(room)), key=room.__getitem__)]


def _apart(examples: Sequence[Example]) -> list[list[Document]]:
    """A row for each document, those of the example with the longest one first."""
    ordered = sorted(examples, key=_longest, reverse=True)
    return [[document] for example in ordered for document in example]


def _length(example: Example) -> int:
    return sum(len(document.tokens) for document in example)


def _longest(example: Example) -> int:
    return max(len(document.tokens) for document in example)


def _batch(filled: Sequence[Sequence[Document]], rows: int, size: int, packing: bool) -> Batch:
    """Write rows of documents into a batch."""
    zeros = np.zeros((rows, size), np.float32)
    tokens, weights = zeros.astype(np.int32), zeros.copy()
    length, starts = np.zeros(rows, np.int32), np.zeros((rows, size), np.int32)
    for row, documents in enumerate(filled):
        for document in documents:
            first, end = length[row], length[row] + len(document.tokens)
            tokens[row, first:end] = document.tokens
            weights[row, first:end] = document.weights
            starts[row, first:end] = first
            length[row] = end
        starts[row, length[row] :] = length[row]
    return Batch(
        tokens=tokens,
        length=length,
        mask=(weights > 0).astype(np.float32),
        advantages=zeros,
        logprobs=zeros,
        weights=weights,
        temperature=np.asarray(1, np.float32),
        starts=starts if packing else None,
    )
