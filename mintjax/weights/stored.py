"""Where a checkpoint has a base weight: in one tensor, in a part of one, or in one for each expert."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


class Stored(NamedTuple):
    """A place in a checkpoint.

    Attributes:
        name: the tensor's name; ``*`` in it stands for an expert's number, and the weight is all experts' tensors
            stacked.
        part: the weight, of what that tensor holds.
    """

    name: str
    part: Callable[[np.ndarray], np.ndarray] | None = None

    def tensors(self, shape: tuple[int, ...]) -> tuple[str, ...]:
        """Names of the tensors that a weight of this shape is read from.

        Example:
            >>> Stored("experts.*.up").tensors((2, 8, 4))
            ('experts.0.up', 'experts.1.up')
        """
        if "*" not in self.name:
            return (self.name,)
        return tuple(self.name.replace("*", str(expert)) for expert in range(shape[0]))

    def array(self, shape: tuple[int, ...], read: Callable[[str], np.ndarray]) -> np.ndarray:
        """Reads the weight, a tensor at a time.

        Args:
            shape: what it should have; the result has what the checkpoint has.
            read: the tensor of a name, which raises for what cannot be used.

        Returns:
            The weight, as the checkpoint's dtype.

        Raises:
            ValueError: for experts of unlike shapes.

        Example:
            >>> Stored("up").array((8, 4), arrays.get)  # doctest: +SKIP
        """
        names = self.tensors(shape)
        if "*" not in self.name:
            array = read(self.name)
            return array if self.part is None else self.part(array)
        first = read(names[0])
        stack = np.empty((len(names), *first.shape), first.dtype)
        for place, name in zip(stack, names, strict=True):
            array = read(name)
            if array.shape != first.shape:
                raise ValueError(
                    f"{name}: expected {first.shape}, as {names[0]}, got {array.shape}"
                )
            place[...] = array
        return stack


def gate_of(packed: np.ndarray) -> np.ndarray:
    """The gates of experts whose gate and up projections are one tensor, ``[E, gate then up, in]``.

    Example:
        >>> gate_of(np.zeros((8, 10, 4))).shape
        (8, 5, 4)
    """
    return packed[:, : packed.shape[1] // 2]


def up_of(packed: np.ndarray) -> np.ndarray:
    """The other half of what :func:`gate_of` reads.

    Example:
        >>> up_of(np.zeros((8, 10, 4))).shape
        (8, 5, 4)
    """
    return packed[:, packed.shape[1] // 2 :]
