"""Compiled programs: kept on the disk from run to run, and counted."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import jax

from mintjax.weights.download import cache_directory

_REQUEST = "/jax/core/compile/backend_compile_duration"
_MISS = "/jax/compilation_cache/cache_misses"


@dataclass
class Compiles:
    """What XLA was asked for since counting began.

    Attributes:
        programs: compiled, or read back from the cache on disk.
        misses: of these, those that the cache on disk did not have.
        seconds: that both took.
    """

    programs: int = 0
    misses: int = 0
    seconds: float = 0.0

    def take(self) -> dict[str, float]:
        """The counts as metrics, after which counting starts anew."""
        found = {
            "perf/compiles": float(self.programs),
            "perf/compile_cache_misses": float(self.misses),
            "time/compile": self.seconds,
        }
        self.programs, self.misses, self.seconds = 0, 0, 0.0
        return found


def keep_compiled() -> None:
    """Makes XLA keep every program it compiles, in ``xla`` in the cache directory, and look there first.

    What the user has set for JAX stays: ``JAX_COMPILATION_CACHE_DIR`` is another place, and
    ``JAX_ENABLE_COMPILATION_CACHE=false`` keeps nothing.

    Example:
        >>> keep_compiled()
        >>> jax.config.jax_compilation_cache_dir
        '/home/me/.cache/mintjax/xla'
    """
    directory = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    if directory is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_directory() / "xla"))
        # Programs that compile in less than a second are most of them, and add up.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


@contextmanager
def counted_compiles() -> Iterator[Compiles]:
    """Counts what is compiled while the context is open, in all threads.

    Example:
        >>> with counted_compiles() as compiles:
        ...     jax.jit(jnp.sin)(1.0)
        >>> compiles.programs
        1
    """
    compiles = Compiles()

    def count(event: str, **kwargs: str | int) -> None:
        del kwargs
        compiles.misses += event == _MISS

    def time(event: str, duration_secs: float, **kwargs: str | int) -> None:
        del kwargs
        if event == _REQUEST:
            compiles.programs += 1
            compiles.seconds += duration_secs

    jax.monitoring.register_event_listener(count)
    jax.monitoring.register_event_duration_secs_listener(time)
    try:
        yield compiles
    finally:
        jax.monitoring.unregister_event_listener(count)
        jax.monitoring.unregister_event_duration_listener(time)
