"""What sampling a batch of episodes cost, in counts."""

from collections.abc import Sequence
from typing import NamedTuple

_AT_MOST = ("capacity", "cache_bytes", "held_bytes", "slots_used")


class RolloutStats(NamedTuple):
    """What a batch cost.

    Attributes:
        prefilled_tokens: tokens that were fed without being sampled; each is fed once, in the turn that brings it.
        shared_tokens: tokens that were not fed at all, since another conversation began with the same ones.
        sampled_tokens: tokens that were sampled.
        cache_growths: how often the cache moved to a larger bucket.
        capacity: tokens that a row of the cache has room for at the end, those that it shares with others included; 0
            where nothing was fed.
        cache_bytes: what keys and values of all rows take at the end.
        row_steps: rows times the steps that the decoder made; a row that waits is run with the others.
        decode_calls: how often the decoder was called.
        refills: how often a row took another episode.
        prefix_hits: conversations that began with tokens whose cache was still held.
        prefix_evictions: caches of prompts that were dropped for want of room.
        slots_used: caches of finished episodes that waited outside of the rows, at most.
        held_bytes: what caches outside of the rows took at most: those of prompts, and of finished episodes.
    """

    prefilled_tokens: int
    shared_tokens: int
    sampled_tokens: int
    cache_growths: int
    capacity: int
    cache_bytes: int
    row_steps: int = 0
    decode_calls: int = 0
    refills: int = 0
    prefix_hits: int = 0
    prefix_evictions: int = 0
    slots_used: int = 0
    held_bytes: int = 0

    @property
    def rows_busy(self) -> float:
        """The share of rows that sampled a token, over all steps of the decoder; 0 where there was none."""
        return self.sampled_tokens / self.row_steps if self.row_steps else 0.0


def one_after_another(stats: Sequence[RolloutStats]) -> RolloutStats:
    """What batches cost together whose caches were not held at once: counts add up, of sizes the largest tells.

    Args:
        stats: of each batch; at least one.

    Example:
        >>> one_after_another([first.stats, second.stats]).capacity
        256
    """
    columns = zip(RolloutStats._fields, zip(*stats, strict=True), strict=True)
    return RolloutStats(**{n: (max if n in _AT_MOST else sum)(values) for n, values in columns})
