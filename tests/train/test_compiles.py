"""Compiled programs are counted, and kept where the user wants them."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp

from mintjax.train.compiles import counted_compiles


def test_new_shapes_are_counted_once():
    double = jax.jit(lambda x: x + x)
    inputs = [jnp.zeros(size) for size in (3, 3, 4)]
    with counted_compiles() as compiles:
        for x in inputs:
            double(x)
        first = compiles.take()
        double(inputs[0])
        second = compiles.take()
    double(jnp.zeros(5))
    assert (first["perf/compiles"], second["perf/compiles"], compiles.programs) == (2, 0, 0)
    assert first["time/compile"] > 0 == second["time/compile"]


def test_where_programs_are_kept(tmp_path):
    script = (
        "import jax; from mintjax.train.compiles import keep_compiled; keep_compiled();"
        "print(jax.config.jax_compilation_cache_dir)"
    )

    def place(**variables):
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
        return subprocess.run(
            [sys.executable, "-c", script],
            env=inherited | {"JAX_PLATFORMS": "cpu", "MINTJAX_CACHE": str(tmp_path)} | variables,
            check=True, capture_output=True, text=True,
        ).stdout.strip()  # fmt: skip

    assert place() == str(tmp_path / "xla")
    assert place(JAX_COMPILATION_CACHE_DIR="/elsewhere") == "/elsewhere"
