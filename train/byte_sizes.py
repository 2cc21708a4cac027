"""Numbers of bytes as people write and read them."""

import re

_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def parse_bytes(text: int | str) -> int:
    """A number of bytes from a number, or from a text such as ``"2GiB"`` or ``"1.5 GB"``.

    Args:
        text: the size; without a unit it is in bytes.

    Returns:
        Bytes.

    Raises:
        ValueError: where it is no size above 0.

    Example:
        >>> parse_bytes("2KiB"), parse_bytes(500)
        (2048, 500)
    """
    match = _SIZE.fullmatch(str(text).strip())
    if (
        match is None
        or match[2] not in _UNITS
        or not (size := int(float(match[1]) * _UNITS[match[2]]))
    ):
        units = ", ".join(unit for unit in _UNITS if unit)
        raise ValueError(
            f"expected bytes, a number above 0 with one of {units} or none, got {text!r}"
        )
    return size


def show_bytes(size: float) -> str:
    """A number of bytes to read, with three digits.

    Example:
        >>> show_bytes(3 * 2**29), show_bytes(640)
        ('1.50 GiB', '640 B')
    """
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size >= _UNITS[unit]:
            number = size / _UNITS[unit]
            return f"{number:.{max(0, 3 - len(str(int(number))))}f} {unit}"
    return f"{size:.0f} B"
