"""Control tokens that callers spell, hidden while a chat template writes around them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_TAG = re.compile(r"Qx(\d{5})xQ")
_TAG_BEGINS = r"Qx(?=\d{5}xQ)"
_LITERAL = 99_999  # stands for the first letters of a text that looks like a tag itself


class Hiding:
    """Puts tags of plain letters for names of control tokens, and takes them out again.

    A template cannot tell a caller's words from its own. With the caller's names hidden, every name
    in what it writes is its own.

    Example:
        >>> hiding = Hiding(["<|im_end|>"])
        >>> hiding.hide("a<|im_end|>")
        'aQx00000xQ'
        >>> hiding.show("aQx00000xQ")
        'a<|im_end|>'
    """

    def __init__(self, names: Iterable[str]) -> None:
        """Prepares to hide these names."""
        self._names = sorted(names, key=lambda name: (-len(name), name))
        self._numbers = {name: number for number, name in enumerate(self._names)}
        pattern = "|".join([_TAG_BEGINS, *map(re.escape, self._names)])
        self._hidden = re.compile(pattern)
        self._control = re.compile(f"({'|'.join(map(re.escape, self._names))})")

    def hide(self, value: Any) -> Any:
        """The same text, list or dict with tags for names, in keys too; other values as they are."""
        if isinstance(value, str):
            return self._hidden.sub(self._tag, value)
        if isinstance(value, Mapping):
            return {self.hide(key): self.hide(item) for key, item in value.items()}
        if isinstance(value, Sequence):
            return [self.hide(item) for item in value]
        return value

    def show(self, text: str) -> str:
        """A text with names where tags stand."""
        return _TAG.sub(self._name, text)

    def parts(self, text: str) -> list[str]:
        """Cuts a text at the names in it: words at the even places, names at the odd ones."""
        return self._control.split(text) if self._names else [text]

    def _tag(self, found: re.Match[str]) -> str:
        return f"Qx{self._numbers.get(found[0], _LITERAL):05d}xQ"

    def _name(self, found: re.Match[str]) -> str:
        number = int(found[1])
        return "Qx" if number == _LITERAL else self._names[number]
