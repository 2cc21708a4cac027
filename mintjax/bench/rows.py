"""What a benchmark is, and the row that it prints."""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax

from mintjax.bench.clock import Ratio, Timed, ratio

_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


class Figures(NamedTuple):
    """What was measured.

    Attributes:
        ours: mintjax's figure, in ``unit``.
        other: what it is held against, in ``unit``.
        ratio: of the two, with its interval; a benchmark says which way round.
        unit: of both figures.
        details: everything else that tells what the figures mean.
    """

    ours: float
    other: float
    ratio: Ratio
    unit: str
    details: dict[str, Any]

    def row(self, name: str) -> "Row":
        """The figures by name, with what the machine was.

        Example:
            >>> print(time_ratio(*interleaved(ours, other, runs=9)).row("step").as_json())
        """
        median, low, high = self.ratio
        details = self.details | machine()
        return Row(name, self.ours, self.other, median, (low, high), self.unit, details)


@dataclass(frozen=True)
class Row:
    """A benchmark's result.

    Attributes:
        name: the benchmark.
        ours: mintjax's figure.
        other: what it is held against.
        ratio: the median of the ratios of the two.
        spread: the interval that holds it with a probability of 90 %.
        unit: of both figures.
        details: sizes, the same ratio in CPU seconds, and what the machine was.
    """

    name: str
    ours: float
    other: float
    ratio: float
    spread: tuple[float, float]
    unit: str
    details: dict[str, Any]

    def as_json(self) -> str:
        """The row as one line of JSON, its details beside the rest; numbers have five digits.

        Example:
            >>> Row("x", 1.0, 2.0, 0.5, (0.5, 0.5), "s", {"runs": 9}).as_json()
            '{"name": "x", "ours": 1.0, "other": 2.0, "ratio": 0.5, "spread": [0.5, 0.5], "unit": "s", "runs": 9}'
        """
        fields = asdict(self)
        return json.dumps(_rounded(fields | fields.pop("details")))


@dataclass(frozen=True)
class Benchmark:
    """A measurement by name.

    Attributes:
        name: of its row.
        about: what is compared, on what, and what the ratio is.
        measure: takes the size and the number of runs.
        size: what it is measured on.
        by_name: run only where it is asked for by name, since it takes minutes.
    """

    name: str
    about: str
    measure: Callable[[Any, int], Figures]
    size: Any
    by_name: bool = False

    def run(self, runs: int, size: Any = None) -> Row:
        """Measures, and says on what.

        Args:
            runs: how often each of the two is timed.
            size: another size than the benchmark's own, of the same kind.

        Returns:
            The row.

        Example:
            >>> BENCHMARKS["segments_vs_packed_time"].run(9).ratio
        """
        size = self.size if size is None else size
        figures = self.measure(size, runs)
        return figures._replace(details=figures.details | {"size": _described(size)}).row(self.name)


def time_ratio(ours: Timed, other: Timed, **details: Any) -> Figures:
    """Seconds, and ours divided by the other's: below 1 is faster.

    Example:
        >>> time_ratio(*interleaved(ours, other, runs=9))
    """
    return _timed(ours, other, (ours, other), details)


def speed_up(ours: Timed, other: Timed, **details: Any) -> Figures:
    """Seconds, and the other's divided by ours: above 1 is faster.

    Example:
        >>> speed_up(*interleaved(ours, other, runs=9))
    """
    return _timed(ours, other, (other, ours), details)


def exact_ratio(ours: float, other: float, unit: str, **details: Any) -> Figures:
    """Figures that do not vary from run to run, and ours divided by the other's.

    Example:
        >>> exact_ratio(36.0, 115.0, "MiB")
    """
    quotient = ours / other
    return Figures(ours, other, Ratio(quotient, quotient, quotient), unit, details)


def machine() -> dict[str, Any]:
    """What ran a benchmark: jax's version and platform, the cores it may use, and whether memory is in huge pages."""
    kernel = (
        _HUGE_PAGES.read_text().partition("[")[2].partition("]")[0]
        if _HUGE_PAGES.exists()
        else None
    )
    return {
        "jax": jax.__version__,
        "platform": jax.default_backend(),
        "cores": os.cpu_count(),
        "huge_pages": kernel,
        "glibc_tunables": os.environ.get("GLIBC_TUNABLES"),
    }


def _timed(
    ours: Timed, other: Timed, quotient: tuple[Timed, Timed], details: dict[str, Any]
) -> Figures:
    """Seconds of both, and the ratio of the first of the quotient to its second, in wall and in CPU time."""
    above, below = quotient
    cpu = ratio(above.cpu, below.cpu)
    figures = {"cpu_ratio": cpu.median, "cpu_spread": (cpu.low, cpu.high), "runs": len(ours.wall)}
    wall = ratio(above.wall, below.wall)
    return Figures(ours.seconds, other.seconds, wall, "s", figures | details)


def _described(size: Any) -> dict[str, Any]:
    """A size's numbers; of a model its name."""
    fields = {name: getattr(size, name) for name in size.__dataclass_fields__}
    return {name: getattr(value, "name", value) for name, value in fields.items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return value
