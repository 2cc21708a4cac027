"""What holds for every test: the CPU backend, no network for models' hubs, kept compilations, checked shapes."""

import os
from pathlib import Path

import hypothesis

# Read by jax and huggingface_hub at import; subprocesses that a test starts inherit them.
_CACHE = Path(os.environ.get("MINTJAX_CACHE") or Path.home() / ".cache" / "mintjax")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_CACHE / "xla-tests"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

# The same examples on every run, so that a failure on one machine fails on all; XLA compiles inside
# examples, so no example has a deadline.
hypothesis.settings.register_profile("tests", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("tests")
