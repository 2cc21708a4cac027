"""Numbers beside a prompt's tokens, as the clients take and return them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

_DTYPES = {"int64": np.int64, "float32": np.float32}


@dataclass(frozen=True, eq=False)
class TensorData:
    """An array of one of two dtypes, dense or in compressed sparse rows.

    Attributes:
        data: the numbers in row order, or the nonzero ones; kept as a flat read-only numpy array.
        dtype: ``"int64"`` or ``"float32"``.
        shape: its shape; None is that of ``data``.
        sparse_crow_indices: of a sparse matrix, where each row starts in ``data``, and the end of the last one.
        sparse_col_indices: of a sparse matrix, the column of each number.

    Example:
        >>> TensorData([1.0, 2.0], "float32").tolist()
        [1.0, 2.0]
    """

    data: Any
    dtype: Literal["int64", "float32"]
    shape: Sequence[int] | None = None
    sparse_crow_indices: Sequence[int] | None = None
    sparse_col_indices: Sequence[int] | None = None

    def __post_init__(self) -> None:
        """Convert the numbers, and refuse those that do not fit the dtype, the shape or each other."""
        if self.dtype not in _DTYPES:
            raise ValueError(f"dtype: expected 'int64' or 'float32', got {self.dtype!r}")
        given = np.asarray(self.data)
        if self.dtype == "int64" and given.size and not np.issubdtype(given.dtype, np.integer):
            raise ValueError(
                f"data: expected integers for dtype 'int64', got {given.dtype}; round them, or say 'float32'"
            )
        shape = tuple(map(int, given.shape if self.shape is None else self.shape))
        numbers = given.astype(_DTYPES[self.dtype]).reshape(-1)
        sparse = self.sparse_crow_indices is not None
        if sparse != (self.sparse_col_indices is not None):
            raise ValueError(
                "sparse_crow_indices, sparse_col_indices: expected both or none; a sparse matrix needs both"
            )
        if sparse:
            self._set(sparse_crow_indices=tuple(map(int, self.sparse_crow_indices or ())))
            self._set(sparse_col_indices=tuple(map(int, self.sparse_col_indices or ())))
            _check_sparse(numbers, shape, self.sparse_crow_indices, self.sparse_col_indices)
        elif numbers.size != np.prod(shape, dtype=np.int64):
            raise ValueError(
                f"shape: {list(shape)} holds {np.prod(shape, dtype=np.int64)} numbers, and data has {numbers.size}; "
                f"leave shape out for a flat list"
            )
        numbers.flags.writeable = False
        self._set(data=numbers, shape=shape)

    def _set(self, **fields: Any) -> None:
        """Set fields of the frozen value while it is made."""
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_numpy(cls, array: np.ndarray) -> "TensorData":
        """The same numbers; integers of any width become int64, floats float32."""
        array = np.asarray(array)
        return cls(array, "int64" if np.issubdtype(array.dtype, np.integer) else "float32")

    @classmethod
    def from_torch(cls, tensor: Any) -> "TensorData":
        """The numbers of a torch tensor."""
        return cls.from_numpy(tensor.detach().cpu().numpy())

    def to_numpy(self) -> np.ndarray:
        """The dense array, of the dtype and the shape that it says."""
        if self.sparse_crow_indices is None or self.sparse_col_indices is None:
            return self.data.reshape(self.shape)
        dense = np.zeros(self.shape or (), self.data.dtype)
        rows = np.repeat(np.arange(dense.shape[0]), np.diff(self.sparse_crow_indices))
        dense[rows, list(self.sparse_col_indices)] = self.data
        return dense

    def to_torch(self) -> Any:
        """A torch tensor of its own memory; torch must be installed."""
        import torch

        return torch.from_numpy(self.to_numpy().copy())

    def tolist(self) -> list[Any]:
        """The dense array as nested lists of Python numbers."""
        return self.to_numpy().tolist()

    def __len__(self) -> int:
        """Size of the first dimension."""
        return self.shape[0] if self.shape else 0

    def __eq__(self, other: object) -> bool:
        """Whether dtype, shape and numbers are equal."""
        if not isinstance(other, TensorData):
            return NotImplemented
        return self.dtype == other.dtype and np.array_equal(self.to_numpy(), other.to_numpy())

    __hash__ = None  # type: ignore[assignment]  # compared by content, which is an array


def _check_sparse(
    numbers: np.ndarray, shape: tuple[int, ...], rows: Any, columns: Sequence[int] | None
) -> None:
    """Refuse compressed rows that do not describe a matrix of the shape."""
    columns = columns or ()
    fits = (
        len(shape) == 2
        and len(rows) == shape[0] + 1
        and rows[0] == 0
        and rows[-1] == len(columns) == numbers.size
        and all(np.diff(rows) >= 0)
        and all(0 <= column < shape[1] for column in columns)
    )
    if not fits:
        raise ValueError(
            f"sparse_crow_indices, sparse_col_indices: expected compressed rows of a matrix of shape {list(shape)} "
            f"with {numbers.size} numbers; got {len(rows)} row starts and {len(columns)} columns"
        )
