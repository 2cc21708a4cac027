"""The training loop: sample a batch of episodes, learn from it, write down what happened, and so on.

Everything random is drawn from the run's seed and the step's number, and the train state is all that a step hands on.
So a run that was killed goes on from its last checkpoint to the very numbers that it would have had.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax

from mintjax.cache import State
from mintjax.loading import load_tokenizer
from mintjax.policy import Policy
from mintjax.renderers import get_renderer
from mintjax.renderers.tokenizer import adapt
from mintjax.train import plots
from mintjax.train.accumulate import Accumulation
from mintjax.train.advantages import Advantages
from mintjax.train.byte_sizes import show_bytes
from mintjax.train.compiles import Compiles, counted_compiles, keep_compiled
from mintjax.train.config import TrainConfig
from mintjax.train.config_kinds import kind_name
from mintjax.train.durable import write_atomic, write_rows
from mintjax.train.invocation import record_invocation
from mintjax.train.jit_episodes import episodes as jitted
from mintjax.train.jit_episodes import pure_environment
from mintjax.train.learner import compare, learn, optimizer
from mintjax.train.metrics import append_metrics
from mintjax.train.optimizer import TrainState, init_train_state
from mintjax.train.origin import check_vocabulary, origin_of
from mintjax.train.plan import Plan, with_kernel
from mintjax.train.plan_choice import PlanChoice
from mintjax.train.plan_settling import settle_plan
from mintjax.train.progress import Reporter, report
from mintjax.train.pure_environment import PureEnvironment
from mintjax.train.recognition import Maker
from mintjax.train.rollout import RolloutSettings, rollout
from mintjax.train.rollout_metrics import rollout_metrics
from mintjax.train.rollout_stats import RolloutStats, one_after_another
from mintjax.train.run_directory import RunDirectory, open_run
from mintjax.train.run_policy import Resumed, load_run_policy, resume_run, save_run
from mintjax.train.signals import StopRequest, stop_requests
from mintjax.train.teacher import load_teacher
from mintjax.train.transcripts import episode_rows, to_html
from mintjax.train.truncation import truncation_metrics
from mintjax.types import Episode


def run(config: TrainConfig, *, overwrite: bool = False) -> TrainState:
    """Loads what a configuration names and trains it; see :func:`train`.

    Args:
        config: the run.
        overwrite: discard what an earlier run left in the run directory.

    Returns:
        The train state at the end.

    Example:
        >>> run(load_config("count_down", ["steps=2"]))
    """
    keep_compiled()
    policy = load_run_policy(config.model, config.seed)
    tokenizer = load_tokenizer(config.model.name)
    return train(
        config, policy, tokenizer, overwrite=overwrite, teacher=load_teacher(config, tokenizer)
    )


def train(
    config: TrainConfig,
    policy: Policy,
    tokenizer: Any,
    *,
    overwrite: bool = False,
    teacher: Policy | None = None,
) -> TrainState:
    """Trains a policy in an environment, from the beginning or from where an interrupted run left off.

    SIGTERM and Ctrl-C end the phase that is running, save, and return.

    Args:
        config: the run; its ``model`` section describes ``policy`` already.
        policy: with a fresh adapter.
        tokenizer: the policy's, as renderers take it.
        overwrite: discard what an earlier run left in the run directory.
        teacher: what ``config.teacher`` names, where it names one; of the policy's vocabulary.

    Returns:
        The train state after the last step that was finished.

    Raises:
        RunDirectoryError: if the run directory cannot be entered.
        RenderError: if tokenizer and renderer do not belong together.
        ValueError: if the tokenizer has more tokens than the model has embeddings, the gradients' attention kernel
            cannot serve the policy here, or episodes that are to run inside jit cannot.
        NonFiniteError: if a loss becomes nan or infinite; the checkpoint before that step is kept.
        PlanMemoryError: if the plan is to be chosen and none fits into memory.

    Example:
        >>> train_state = train(config, policy, tokenizer)
    """
    renderer = get_renderer(config.renderer, tokenizer)
    renderer.stop_tokens()  # a tokenizer without the format's control tokens is refused before a run directory is made
    check_vocabulary(config.model.name, policy, tokenizer)
    environment = pure_environment(config, policy.config, renderer)
    # An attention kernel that cannot serve is refused before, too.
    with_kernel(Plan(attention=config.gradients.attention), policy)
    with (
        open_run(config, overwrite=overwrite) as directory,
        stop_requests() as stop,
        report(directory.log, config.steps) as reporter,
        counted_compiles() as compiles,
    ):
        record_invocation(directory, seed=config.seed, devices=[str(d) for d in jax.devices()])
        train_state = init_train_state(policy, optimizer(config))
        config, plan = settle_plan(config, policy, directory)
        reporter.say(f"gradients    {plan}")
        loop = _Loop(
            config,
            plan,
            renderer,
            tokenizer,
            environment,
            directory,
            reporter,
            stop,
            compiles,
            origin_of(config.model.name, config.renderer, policy, tokenizer),
            teacher,
        )
        return loop.run(train_state)


class _Stopped(Exception):
    """A stop was asked for between two phases."""


@dataclass
class _Loop:
    """What every step needs; nothing here changes from step to step but the times of the phases and the data's position."""

    config: TrainConfig
    plan: PlanChoice
    renderer: Any
    tokenizer: Any
    environment: PureEnvironment | None
    directory: RunDirectory
    reporter: Reporter
    stop: StopRequest
    compiles: Compiles
    origin: dict[str, str]
    teacher: Policy | None = None
    times: dict[str, float] = field(default_factory=dict)
    position: int = 0
    """Tasks that the finished steps have consumed."""

    def __post_init__(self) -> None:
        """Makes environments for the whole run, since some are used again."""
        self.make = Maker(self.config.environment.make)

    def run(self, train_state: TrainState) -> TrainState:
        """Restores the newest checkpoint if there is one, and makes the steps that are left."""
        done, train_state = self._restore(train_state)
        saved = done
        try:
            if done < 0:
                done = self._before_first(train_state)
            for step in range(done + 1, self.config.steps + 1):
                train_state, row = self._step(step, train_state)
                done = step
                if step % self.config.checkpoint.every == 0 or step == self.config.steps:
                    self._save(step, train_state, row)
                    saved = step
        except _Stopped:
            if done > max(saved, 0):
                self._save(done, train_state, {})
            self.reporter.say(
                f"{self.stop.signal}: saved step {done}; the same command goes on from there"
            )
            return train_state
        self.reporter.say(f"plot         {plots.reward(self.directory, title=self._title)[1]}")
        self.reporter.say(f"transcripts  {self.directory.transcript(self.config.steps).parent}")
        return train_state

    @property
    def _title(self) -> str:
        return f"{self.config.name}: {self.config.model.name}, advantage {kind_name(self.config.advantage)}"

    def _restore(self, train_state: TrainState) -> tuple[int, TrainState]:
        """The last step that is done (-1: not even the evaluation before the first), and the train state after it."""
        resumed = resume_run(self.directory, train_state, self.origin)
        if resumed is None:
            return -1, train_state
        step, train_state, self.position = resumed
        self.reporter.say(f"going on after step {step}")
        return step, train_state

    def _save(self, step: int, train_state: TrainState, row: dict[str, Any]) -> None:
        with self._phase("checkpoint", stoppable=False):
            save_run(
                self.directory,
                Resumed(step, train_state, self.position),
                seed=self.config.seed,
                metrics=row,
                origin=self.origin,
                keep=self.config.checkpoint,
            )
            plots.reward(self.directory, title=self._title)

    def _before_first(self, train_state: TrainState) -> int:
        if self.config.evaluation.at_start:
            metrics = self._evaluate(0, train_state.policy) | self.compiles.take()
            self.reporter.step(append_metrics(self.directory.metrics, 0, metrics))
        return 0

    def _step(self, step: int, train_state: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """One step, whose files are on the disk when it returns."""
        self.times = {}
        config, start = self.config, time.perf_counter()
        walked = config.gradients.plan == "reverse_only"
        accumulation = Accumulation(config, train_state, self.teacher) if walked else None
        episodes, metrics = self._sample_step(train_state.policy, step, accumulation)
        with self._phase("learn"):
            learned = (
                accumulation.finish()
                if accumulation
                else learn(config, train_state, episodes, self.teacher)
            )
        with self._phase("write"):
            self._write_episodes(step, episodes, learned.advantages)
        metrics |= learned.metrics | self._plan_metrics(episodes)
        due = config.evaluation.every and step % config.evaluation.every == 0
        if due or (config.evaluation.at_end and step == config.steps):
            metrics |= self._evaluate(step, learned.train_state.policy)
        seconds = time.perf_counter() - start
        tokens = metrics["rollout/prefilled_tokens"] + metrics["rollout/sampled_tokens"]
        metrics |= {f"time/{name}": value for name, value in self.times.items()}
        metrics |= self.compiles.take()
        metrics |= {"time/step": seconds, "perf/tokens_per_second": tokens / seconds}
        row = append_metrics(self.directory.metrics, step, metrics)
        self.position = int(metrics["data/position"])
        self.reporter.step(row)
        return learned.train_state, row

    def _plan_metrics(self, episodes: list[Episode]) -> dict[str, float]:
        """The plan in numbers; rows that outgrow what it was chosen for are said aloud."""
        longest = max(len(episode.tokens) for episode in episodes)
        metrics = self.plan.metrics(longest)
        if self.plan.exceeded(longest):
            self.reporter.say(
                f"a row of {longest} tokens: the plan needs about "
                f"{show_bytes(metrics['plan/need_bytes'])}, more than there was when it was chosen for "
                f"{self.plan.tokens} tokens; set rollout.capacity to the longest episode and start anew"
            )
        return metrics

    def _sample_step(
        self, policy: Policy, step: int, accumulation: Accumulation | None
    ) -> tuple[list[Episode], dict[str, float]]:
        """A step's episodes and their figures; groups without a signal are replaced as often as may be."""
        config, position = self.config, self.position
        options = config.rollout
        episodes: list[Episode] = []
        stats: list[RolloutStats] = []
        missing, groups = options.groups, 0
        for _ in range(1 + options.resample_rounds):
            tasks = config.environment.tasks(position + groups, missing, config.seed)
            played = self._sample(
                policy, tasks, step, stats,
                phase="rollout", accumulation=accumulation, first_group=groups,
            )  # fmt: skip
            episodes += played
            groups += missing
            if not options.resample_rounds:
                break
            missing = sum(not signal for signal in compare(config, played).signal.values())
            if not missing:
                break
        metrics = rollout_metrics(episodes, one_after_another(stats), self._side_by_side(False))
        metrics |= truncation_metrics(episodes, config.truncation)
        metrics |= {
            "data/position": float(position + groups),
            "groups/resampled": float(groups - options.groups),
        }
        return episodes, metrics

    def _sample(
        self,
        policy: Policy,
        tasks: Sequence[Any],
        step: int,
        stats: list[RolloutStats],
        *,
        phase: str,
        greedy: bool = False,
        accumulation: Accumulation | None = None,
        first_group: int = 0,
    ) -> list[Episode]:
        """Episodes of all tasks, as many groups side by side as may be in flight; what they cost is added to the stats."""
        options = self.config.rollout
        size = self._side_by_side(greedy) or len(tasks)
        settings = RolloutSettings(
            group_size=1 if greedy else options.group_size,
            max_tokens=options.max_tokens,
            max_turns=options.max_turns,
            max_episode_tokens=options.max_episode_tokens,
            step_timeout=options.step_timeout,
            episode_timeout=options.episode_timeout,
            parse_errors=options.parse_errors,
            parse_error_reward=options.parse_error_reward,
            groups=size,
            temperature=0.0 if greedy else options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            capacity=options.capacity,
            prompts=options.in_flight,
            rows=options.rows,
            slots=options.slots,
        )
        walk = partial(self._walk, accumulation) if accumulation and options.rows else None
        episodes: list[Episode] = []
        for first in range(0, len(tasks), size):
            with self._phase(phase):
                wave = tasks[first : first + size], settings
                chance = dict(seed=self.config.seed, step=step, first_group=first_group + first)
                if self.environment is not None:
                    played = jitted(policy, self.renderer, self.environment, *wave, **chance)
                else:
                    played = rollout(
                        policy, self.renderer, self.tokenizer, self.make, *wave, **chance,
                        group_done=walk, between=self._heed_stop,
                    )  # fmt: skip
            if accumulation and not options.rows:
                with self._phase("learn"):
                    accumulation.add(played.episodes, played.state)
            episodes += played.episodes
            stats.append(played.stats)
            del played  # and with it the cache, before the next groups fill theirs
        return episodes

    def _side_by_side(self, greedy: bool) -> int | None:
        """How many groups are sampled at once; greedy ones are of one episode: as many as make up the rows of a step.

        None where rows refill: as many as there are.
        """
        options = self.config.rollout
        if options.rows:
            return None
        return options.in_flight * (options.group_size if greedy else 1)

    def _walk(
        self, accumulation: Accumulation, episodes: list[Episode], state: State | None
    ) -> None:
        """Takes a group's gradient while others are sampled; the time is the gradient's, not the rollout's."""
        self._heed_stop()
        start = time.perf_counter()
        accumulation.add(episodes, state)
        seconds = time.perf_counter() - start
        for phase, more in (("learn", seconds), ("rollout", -seconds)):
            self.times[phase] = self.times.get(phase, 0.0) + more

    def _evaluate(self, step: int, policy: Policy) -> dict[str, float]:
        """Greedy episodes of the first tasks: as many as a step has episodes, so that nothing more is compiled."""
        options = self.config.rollout
        count = options.groups * options.group_size
        tasks = self.config.environment.tasks(0, count, self.config.seed)
        stats: list[RolloutStats] = []
        episodes = self._sample(policy, tasks, step, stats, phase="evaluation", greedy=True)
        metrics = rollout_metrics(episodes, one_after_another(stats), self._side_by_side(True))
        write_rows(self.directory.evaluation(step), episode_rows(step, episodes))
        # What depends on the time is no figure that a resumed run repeats, of an evaluation either.
        return {
            name.replace("perf/", "perf/eval/")
            if name.startswith("perf/")
            else f"eval/greedy/{name}": value
            for name, value in metrics.items()
        }

    def _write_episodes(self, step: int, episodes: list[Episode], advantages: Advantages) -> None:
        rows = episode_rows(step, episodes, advantages)
        write_rows(self.directory.rollouts(step), rows)
        page = to_html(rows, adapt(self.tokenizer).decode, title=f"{self.config.name}, step {step}")
        write_atomic(self.directory.transcript(step), page)

    def _heed_stop(self) -> None:
        if self.stop:
            raise _Stopped

    @contextmanager
    def _phase(self, name: str, *, stoppable: bool = True) -> Iterator[None]:
        """Times a phase and shows its name; a stop that was asked for is heard here."""
        if stoppable:
            self._heed_stop()
        self.reporter.phase(name)
        start = time.perf_counter()
        yield
        self.times[name] = self.times.get(name, 0.0) + time.perf_counter() - start
