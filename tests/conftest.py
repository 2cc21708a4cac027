"""What holds for every test: the CPU backend, no network for models' hubs, kept compilations, checked shapes."""

import gc
import os
from pathlib import Path

import hypothesis
import jaxtyping
import pytest

from tests.layout import modules

# Read by jax and huggingface_hub at import; subprocesses that a test starts inherit them. Compiling is most of
# the tests' time: LLVM does without its optimizations, XLA keeps its own, so the programs are the same ones.
_CACHE = Path(os.environ.get("MINTJAX_CACHE") or Path.home() / ".cache" / "mintjax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_CACHE / "xla-tests"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

# The same examples on every run, so that a failure on one machine fails on all; XLA compiles inside
# examples, so no example has a deadline.
hypothesis.settings.register_profile("tests", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("tests")


# A process may have 65,530 memory maps on Linux, of which a compiled program takes six and more: at the limit XLA crashes.
_MOST_MAPS = 20_000


@pytest.fixture(autouse=True, scope="module")
def _few_programs():
    """Lets go of compiled programs between two modules, where there are many; the cache on the disk has them still."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > _MOST_MAPS:
        import jax

        jax.clear_caches()
        gc.collect()


def _annotates_shapes(file: Path) -> bool:
    text = file.read_text()
    # Not where a pytree class is defined: jax fills those with placeholders that have no shape.
    return "from jaxtyping import" in text and "PyTreeNode" not in text


# While tests run, arrays are held against the shapes that their annotations state; an int is a float there.
jaxtyping.install_import_hook(
    [name for name, file in modules().items() if _annotates_shapes(file)],
    "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))",
)
