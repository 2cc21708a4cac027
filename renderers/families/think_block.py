"""Reasoning that a reply begins with, between ``<think>`` and ``</think>``."""

from collections.abc import Sequence

from mintjax.renderers.reading import Part, Reading


def cut_thoughts(found: Sequence[Part], begun: bool) -> tuple[str | None, list[Part]]:
    """The reasoning that a reply begins with, and the parts after it.

    Args:
        found: the reply, cut at ``<think>`` and ``</think>`` at least.
        begun: whether ``</think>`` alone ends reasoning, since the header may have begun it.

    Returns:
        The reasoning, None where the reply has no think block; an unclosed one is all reasoning.
    """
    opened = bool(found) and found[0].control == "<think>"
    end = next((n for n, part in enumerate(found) if part.control == "</think>"), len(found))
    if not opened and not (begun and end < len(found)):
        return None, list(found)
    return "".join(part.text for part in found[opened:end]), list(found[end + 1 :])


def all_reasoning(reading: Reading) -> Reading:
    """A reply that was cut off, read as reasoning where it has neither a think block nor calls."""
    if reading.reasoning is not None or reading.attempts:
        return reading
    return Reading("", reading.content)
