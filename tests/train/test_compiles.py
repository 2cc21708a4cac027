"""Compiled programs are counted, kept where the user wants them, and one a capacity over a whole run."""

import logging
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import pytest

import mintjax.train.environments  # noqa: F401  before the registry is copied, so that the shipped ones stay in it
from mintjax.renderers import Renderer
from mintjax.train.compiles import counted_compiles
from mintjax.train.config import EnvironmentConfig, register_environment
from mintjax.train.environment import Step
from mintjax.train.loop import train
from mintjax.train.metrics import read_metrics
from tests.tiny import tiny_policy
from tests.train.tiny_run import tiny_config, tiny_parts


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


@pytest.mark.parametrize(
    "edge",
    [
        "from mintjax.train.compiles import keep_compiled; keep_compiled()",
        "import mintjax; mintjax.ServiceClient()",
    ],
    ids=["a run", "a service"],
)
def test_where_programs_are_kept(tmp_path, edge):
    script = f"import jax; {edge}; print(jax.config.jax_compilation_cache_dir)"

    def place(**variables):
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
        return subprocess.run(
            [sys.executable, "-c", script],
            env=inherited | {"JAX_PLATFORMS": "cpu", "MINTJAX_CACHE": str(tmp_path)} | variables,
            check=True, capture_output=True, text=True,
        ).stdout.strip()  # fmt: skip

    assert place() == str(tmp_path / "xla")
    assert place(JAX_COMPILATION_CACHE_DIR="/elsewhere") == "/elsewhere"


@dataclass(frozen=True)
class LinesConfig(EnvironmentConfig):
    """Lines of some length, another one in every step."""

    lines: tuple[int, int] = (20, 30)
    turns: int = 2

    def make(self):
        return Lines(self.turns)

    def tasks(self, position, count, seed):
        low, high = self.lines
        # Three groups a step.
        return [
            low + sum(divmod(place, 3)) % (high - low + 1)
            for place in range(position, position + count)
        ]


@pytest.fixture(autouse=True)
def lines_are_an_environment_here(monkeypatch):
    registry = dict(EnvironmentConfig._choice_registry)
    monkeypatch.setattr(EnvironmentConfig, "_choice_registry", registry)
    register_environment("lines")(LinesConfig)


@dataclass
class Lines:
    """Pays for the length of a reply."""

    turns: int
    heard: int = 0

    def reset(self, task, seed):
        return [{"role": "user", "content": "x" * task}]

    def step(self, assistant):
        self.heard += 1
        reward = len(assistant["content"]) / 10
        if self.heard == self.turns:
            return Step([], reward, True, "finished")
        return Step([{"role": "user", "content": "y"}], reward, False)


@pytest.fixture(scope="module")
def parts():
    """A model of a shape that no other test has, so that nothing is compiled for it yet."""
    policy, tokenizer = tiny_parts()
    return tiny_policy(config=replace(policy.config, hidden_size=20)), tokenizer


class Programs(logging.Handler):
    """Counts compilations by the name of the function, from what JAX logs."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def emit(self, record):
        if found := re.match(r"Compiling (?:jit\()?([\w<>]+)\)? with", record.getMessage()):
            self.counts[found[1]] += 1


@pytest.fixture
def compiled(tmp_path, parts, monkeypatch):
    """A run, as a function that returns its rows and what it compiled."""

    def run(name, *, lines=(20, 30), turns=2, **rollout):
        options = {"groups": 3, "group_size": 2, "groups_in_flight": 2, "max_tokens": 12}
        config = tiny_config(
            str(tmp_path), name, steps=3,
            environment={"type": "lines", "lines": list(lines), "turns": turns},
            rollout=options | {"capacity": 256} | rollout,
            gradients={"plan": "reverse_only", "segment": 64, "rows": 3},
            advantage={"type": "group_mean"},
            evaluation={"at_start": True, "at_end": True},
        )  # fmt: skip
        programs, logger = Programs(), logging.getLogger("jax")
        monkeypatch.setattr(logger, "handlers", [programs])
        monkeypatch.setattr(logger, "propagate", False)
        with jax.log_compiles():
            train(config, *parts)
        return read_metrics(tmp_path / name / "metrics.jsonl"), programs.counts

    return run


def test_a_run_compiles_once_for_a_capacity(compiled, monkeypatch):
    rows, programs = compiled("first")
    assert [row["perf/compiles"] > 0 for row in rows] == [True, True, False, False]
    # What opens an evaluation, what opens a step, and every later turn of either, for a step's rows share what their group
    # begins with; the last wave is of fewer groups than the others.
    assert programs["_extend_traced"] == 4
    assert programs["_decode_traced"] == 2
    assert programs["reverse_gradients"] == 1
    assert sum(row["update/skipped"] for row in rows[1:]) == 0

    own = Renderer.stop_tokens
    monkeypatch.setattr(Renderer, "stop_tokens", lambda self: (*own(self), 3, 4))
    others = {"max_tokens": 9, "temperature": 0.7, "top_k": 9, "top_p": 0.9}
    rows, programs = compiled("second", lines=(16, 16), turns=4, **others)
    assert len(rows) == 4
    # A run has an optimizer of its own. Lengths, turns, max_tokens, stop set and sampling are no programs, nor are tasks
    # that happen to be equal, but for a gather where all of an evaluation are.
    assert programs == {"init_fn": 1, "_step": 1, "_take_rows": 1}

    # 64 tokens of a row's own for the first turns, then 128, in each of two waves. An evaluation's rows share nothing: 64,
    # 128, and 256 as in the first run.
    rows, programs = compiled("growing", capacity=0, turns=4)
    assert rows[1]["rollout/cache_growths"] == 2
    assert [row["perf/compiles"] for row in rows[2:]] == [0, 0]
    assert programs["_decode_traced"] == 2 + 2
    assert programs["reverse_gradients"] == 1
