"""The loop over a data set: take the next examples, learn from them, write down what happened, and so on.

Which examples a step takes follows from the seed and the step's number, and the train state is all that a step hands on.
So a run that was killed goes on from its last checkpoint to the very numbers that it would have had.
"""

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import jax
import numpy as np

from mintjax.cache import bucket
from mintjax.loading import load_tokenizer
from mintjax.policy import Policy
from mintjax.renderers import get_renderer
from mintjax.train.batches import Batch
from mintjax.train.compiles import Compiles, counted_compiles, keep_compiled
from mintjax.train.config import CheckpointConfig
from mintjax.train.config_dataset import DatasetConfig, DpoConfig, SftConfig
from mintjax.train.data_files import read_examples
from mintjax.train.data_order import examples_at
from mintjax.train.dpo import DpoObjective
from mintjax.train.gradient_sum import GradientSum
from mintjax.train.gradients import evaluate
from mintjax.train.invocation import record_invocation
from mintjax.train.learner import optimizer, step
from mintjax.train.losses import Loss
from mintjax.train.metrics import append_metrics
from mintjax.train.optimizer import TrainState, init_train_state
from mintjax.train.origin import check_vocabulary, origin_of
from mintjax.train.packing import Example, check_fits, lay_out
from mintjax.train.plan import Plan, with_kernel
from mintjax.train.progress import Reporter, report
from mintjax.train.reference import reference_logprobs
from mintjax.train.run_directory import RunDirectory, open_run
from mintjax.train.run_policy import Resumed, load_run_policy, resume_run, save_run
from mintjax.train.sft import SftObjective
from mintjax.train.signals import StopRequest, stop_requests


class Objective(Protocol):
    """What a run makes of its data: examples, their weights, a loss and figures."""

    @property
    def loss(self) -> Loss:
        """Terms whose sum is minimised."""
        ...

    @property
    def needs_reference(self) -> bool:
        """Whether the loss compares with the base model."""
        ...

    def read(self, row: dict[str, Any], renderer: Any) -> list[Example]:
        """The examples of one line of a data file."""
        ...

    def weigh(self, examples: Sequence[Example]) -> list[Example]:
        """The examples of a batch with weights that make the sum the mean that is wanted."""
        ...

    def metrics(self, batches: Sequence[Batch], logprobs: Sequence[np.ndarray]) -> dict[str, float]:
        """Figures of a batch's micro-batches."""
        ...


def run_dataset(config: DatasetConfig, *, overwrite: bool = False) -> TrainState:
    """Loads what a configuration names and trains it; see :func:`train_dataset`.

    Args:
        config: the run.
        overwrite: discard what an earlier run left in the run directory.

    Returns:
        The train state at the end.

    Example:
        >>> run_dataset(load_config("sft_count_down", ["steps=2"], SftConfig))
    """
    keep_compiled()
    policy = load_run_policy(config.model, config.seed)
    tokenizer = load_tokenizer(config.model.name)
    return train_dataset(config, policy, tokenizer, overwrite=overwrite)


def train_dataset(
    config: DatasetConfig, policy: Policy, tokenizer: Any, *, overwrite: bool = False
) -> TrainState:
    """Trains a policy on a data set, from the beginning or from where an interrupted run left off.

    All data is read and rendered before the run directory is made. SIGTERM and Ctrl-C end the step that is running, save, and
    return.

    Args:
        config: an `SftConfig` or `DpoConfig`; its ``model`` section describes ``policy`` already.
        policy: with a fresh adapter.
        tokenizer: the policy's, as renderers take it.
        overwrite: discard what an earlier run left in the run directory.

    Returns:
        The train state after the last step that was finished.

    Raises:
        DataError: if a data file cannot be used; the message names the line.
        RunDirectoryError: if the run directory cannot be entered.
        RenderError: if tokenizer and renderer do not belong together.
        ValueError: if an example does not fit in a row, the tokenizer has more tokens than the model has embeddings, or
            the attention kernel cannot serve.
        NonFiniteError: if a loss becomes nan or infinite; the checkpoint before that step is kept.

    Example:
        >>> train_state = train_dataset(config, policy, tokenizer)
    """
    renderer = get_renderer(config.renderer, tokenizer)
    renderer.stop_tokens()  # a tokenizer without the format's control tokens is refused before the data is read
    check_vocabulary(config.model.name, policy, tokenizer)
    options = config.gradients
    plan = Plan(options.plan, options.segment, options.remat, attention=options.attention)
    with_kernel(plan, policy, documents=options.packing)
    objective = objective_of(config)
    read = partial(objective.read, renderer=renderer)
    data = read_examples(config.data, read)
    held_out = config.evaluation.data
    held = read_examples(held_out, read) if held_out is not None else []
    origin = origin_of(config.model.name, config.renderer, policy, tokenizer)
    origin |= {"data": _fingerprint(data), "held_out_data": _fingerprint(held)}
    check_fits([*data, *held], options.row_tokens, packing=options.packing)
    with (
        open_run(config, overwrite=overwrite) as directory,
        stop_requests() as stop,
        report(directory.log, config.steps) as reporter,
        counted_compiles() as compiles,
    ):
        record_invocation(directory, seed=config.seed, devices=[str(d) for d in jax.devices()])
        loop = _Loop(
            config, objective, plan, data, held, directory, reporter, stop, compiles, origin
        )
        reporter.say(f"data         {len(data)} examples, {len(held)} held out")
        return loop.run(init_train_state(policy, optimizer(config)))


def objective_of(config: DatasetConfig) -> Objective:
    """What a configuration trains for.

    Raises:
        TypeError: for one that is neither kind.

    Example:
        >>> objective_of(SftConfig(name="demo", data="sft_count_down.jsonl")).loss
        CrossEntropy()
    """
    match config:
        case SftConfig():
            return SftObjective(config)
        case DpoConfig():
            return DpoObjective(config)
    raise TypeError(f"config: expected SftConfig or DpoConfig, got {type(config).__name__}")


@dataclass
class _Loop:
    """What every step needs; nothing here changes from step to step but the times of the phases."""

    config: DatasetConfig
    objective: Objective
    plan: Plan
    data: list[Example]
    held: list[Example]
    directory: RunDirectory
    reporter: Reporter
    stop: StopRequest
    compiles: Compiles
    origin: dict[str, str]
    times: dict[str, float] = field(default_factory=dict)

    def run(self, train_state: TrainState) -> TrainState:
        """Restores the newest checkpoint if there is one, and makes the steps that are left."""
        done, train_state = self._restore(train_state)
        saved, row = done, {}
        if done < 0:
            if self.held and self.config.evaluation.at_start:
                metrics = self._evaluate(train_state.policy) | self.compiles.take()
                self.reporter.step(append_metrics(self.directory.metrics, 0, metrics))
            done = 0
        for number in range(done + 1, self.config.steps + 1):
            if self.stop:
                break
            train_state, row = self._step(number, train_state)
            done = number
            if number % self.config.checkpoint.every == 0 or number == self.config.steps:
                self._save(number, train_state, row)
                saved = number
        if self.stop and done < self.config.steps:
            if done > max(saved, 0):
                self._save(done, train_state, row)
            self.reporter.say(
                f"{self.stop.signal}: saved step {done}; the same command goes on from there"
            )
        return train_state

    def _restore(self, train_state: TrainState) -> tuple[int, TrainState]:
        """The last step that is done (-1: not even the evaluation before the first), and the train state after it."""
        resumed = resume_run(self.directory, train_state, self.origin)
        if resumed is None:
            return -1, train_state
        self.reporter.say(f"going on after step {resumed.step}")
        return resumed.step, resumed.train_state

    def _save(self, number: int, train_state: TrainState, row: dict[str, Any]) -> None:
        options = self.config.checkpoint
        save_run(
            self.directory,
            Resumed(number, train_state, number * self.config.batch),
            seed=self.config.seed,
            metrics=row,
            origin=self.origin,
            keep=CheckpointConfig(options.every, options.keep_last, keep_best=False),
        )

    def _step(self, number: int, train_state: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """One step, whose row is on the disk when it returns."""
        config, start = self.config, time.perf_counter()
        self.times = {}
        position = (number - 1) * config.batch
        chosen = examples_at(position, config.batch, len(self.data), config.seed)
        total = GradientSum(train_state.policy, self.objective.loss, self.plan)
        with self._phase("learn"):
            for batch in self._batches(train_state.policy, [self.data[i] for i in chosen]):
                total.add(batch)
            train_state, metrics = step(config, train_state, total)
        metrics |= {
            "loss": total.value,
            "epoch": (position + config.batch) / len(self.data),
            "num_tokens": sum(int((batch.mask > 0).sum()) for batch in total.batches),
            "gradients/fill": total.tokens.real / total.tokens.padded,
        }
        metrics |= self.objective.metrics(total.batches, total.logprobs)
        options = config.evaluation
        due = options.every and number % options.every == 0
        if self.held and (due or (options.at_end and number == config.steps)):
            metrics |= self._evaluate(train_state.policy)
        seconds = time.perf_counter() - start
        metrics |= {f"time/{name}": value for name, value in self.times.items()}
        metrics |= self.compiles.take()
        metrics |= {
            "time/step": seconds,
            "perf/tokens_per_second": total.tokens.real / self.times["learn"],
        }
        row = append_metrics(self.directory.metrics, number, metrics)
        self.reporter.step(row)
        return train_state, row

    def _batches(self, policy: Policy, examples: Sequence[Example]) -> list[Batch]:
        """Micro-batches of examples, with the base model's log probabilities where the loss compares with them."""
        options = self.config.gradients
        longest = max(len(document.tokens) for example in examples for document in example)
        batches = lay_out(
            self.objective.weigh(examples),
            rows=options.rows,
            row_tokens=options.row_tokens,
            packing=options.packing,
            # Segments without a token cost nothing, but another number of them is another program.
            size=bucket(longest) if options.plan == "segments" else None,
        )
        if not self.objective.needs_reference:
            return batches
        base = policy.base_only()
        return [x._replace(reference=reference_logprobs(base, x, self.plan)) for x in batches]

    def _evaluate(self, policy: Policy) -> dict[str, float]:
        """Loss and figures of the data that is held out."""
        with self._phase("evaluation"):
            batches = self._batches(policy, self.held)
            found = [evaluate(policy, batch, self.objective.loss, self.plan) for batch in batches]
            loss = sum(float(part.loss) for part in found)
        figures = self.objective.metrics(batches, [part.logprobs for part in found])
        return {f"eval/{name}": value for name, value in {"loss": loss, **figures}.items()}

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        """Times a phase and shows its name."""
        self.reporter.phase(name)
        start = time.perf_counter()
        yield
        self.times[name] = self.times.get(name, 0.0) + time.perf_counter() - start


def _fingerprint(examples: Sequence[Example]) -> str:
    """A text that other examples, or the same in another order, do not have."""
    found = hashlib.sha256()
    for example in examples:
        for document in example:
            for part in (np.int64(len(document.tokens)), document.tokens, document.weights):
                found.update(np.asarray(part).tobytes())
    return found.hexdigest()
