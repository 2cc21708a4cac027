"""A clock for functions that are to be compared: run in turn, in wall and in CPU seconds, and how sure a median is."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax


class Timed(NamedTuple):
    """What the runs of one function took, in order.

    Attributes:
        wall: seconds that passed.
        cpu: seconds that the threads of this process computed.
    """

    wall: tuple[float, ...]
    cpu: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """The median of the wall times."""
        return statistics.median(self.wall)


class Ratio(NamedTuple):
    """A median, and the interval that holds the true one with a probability of at least 90 %.

    Attributes:
        median: of the ratios of runs that followed each other.
        low: the interval's lower end.
        high: its upper end.
    """

    median: float
    low: float
    high: float


def interleaved(*functions: Callable[[], Any], runs: int) -> tuple[Timed, ...]:
    """Times functions in turn, A B A B, after one run of each that compiles.

    Args:
        functions: what to time; the arrays that they return are waited for.
        runs: how often each is timed.

    Returns:
        The times of each.

    Raises:
        ValueError: if ``runs`` is less than 1.

    Example:
        >>> ours, other = interleaved(lambda: step(x), lambda: peer(x), runs=9)
    """
    if runs < 1:
        raise ValueError(f"runs: expected at least 1, got {runs}")
    for function in functions:
        jax.block_until_ready(function())
    wall: list[list[float]] = [[] for _ in functions]
    cpu: list[list[float]] = [[] for _ in functions]
    for _ in range(runs):
        for i, function in enumerate(functions):
            wall_start, cpu_start = time.perf_counter(), time.process_time()
            jax.block_until_ready(function())
            wall[i].append(time.perf_counter() - wall_start)
            cpu[i].append(time.process_time() - cpu_start)
    return tuple(Timed(tuple(w), tuple(c)) for w, c in zip(wall, cpu, strict=True))


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """The median of paired ratios and its 90 % interval.

    The interval is the narrowest pair of order statistics, as many from either end, between which the median of any
    distribution lies with a probability of at least 90 %: the second and the eighth of nine. Fewer than five ratios
    never reach that; they give the smallest and the largest.

    Args:
        numerators: one a run.
        denominators: one a run.

    Returns:
        Median and interval.

    Example:
        >>> ratio([1.0, 4.0, 3.0], [1.0, 2.0, 2.0])
        Ratio(median=1.5, low=1.0, high=2.0)
    """
    ordered = sorted(a / b for a, b in zip(numerators, denominators, strict=True))
    count, cut = len(ordered), 0
    # A median below the (cut + 2)-th of them means that at most cut + 1 fair coins of `count` fell on one side.
    while 2 * sum(math.comb(count, i) for i in range(cut + 2)) <= 0.1 * 2**count:
        cut += 1
    return Ratio(statistics.median(ordered), ordered[cut], ordered[-1 - cut])
