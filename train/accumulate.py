"""Accumulating as one rolls: the gradient of some groups is taken from the cache that sampling them left.

The weights do not change before the optimizer steps, so that cache is all a backward walk needs, and it can be freed
before the next groups are sampled: memory for caches is bounded by the groups in flight, not by the batch.

An advantage compares the episodes of one group, so it is known when the group ends. What it is divided by is not: a
normaliser counts over the whole batch. That count is one number (`mintjax.train.normalisers.Divisors`), and a loss that
is proportional to the advantages lets it divide the finished sum. The gradient is that of the whole batch.
"""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from mintjax.cache import State, row_capacity, take_rows
from mintjax.policy import Policy
from mintjax.train.batches import micro_batches
from mintjax.train.config import TrainConfig
from mintjax.train.gradient_sum import GradientSum
from mintjax.train.learner import Learned, compare, step_with
from mintjax.train.normalisers import divide, divisors
from mintjax.train.optimizer import TrainState
from mintjax.train.other_policies import OtherPolicies
from mintjax.train.plan_choice import named_plan
from mintjax.types import Episode


class Accumulation:
    """One optimizer step whose episodes come some groups at a time.

    Example:
        >>> accumulation = Accumulation(config, train_state)
        >>> for tasks in waves:
        ...     played = rollout(train_state.policy, renderer, tokenizer, CountDown, tasks, settings, seed=0)
        ...     accumulation.add(played.episodes, played.state)
        >>> learned = accumulation.finish()
    """

    def __init__(
        self, config: TrainConfig, train_state: TrainState, teacher: Policy | None = None
    ) -> None:
        """Start a step.

        Args:
            config: advantages, loss, plan and schedule.
            train_state: the policy that samples the episodes, and its optimizer.
            teacher: the policy that ``config.teacher`` names, where it names one.

        Raises:
            ValueError: where the advantages are those of a whole batch, or the loss is not proportional to them or needs
                whole rows.
        """
        if config.accumulation_refusal:
            raise ValueError(f"gradients.plan: {config.accumulation_refusal}")
        self._config, self._train_state = config, train_state
        policy, plan = train_state.policy, named_plan(config.gradients)
        self._total = GradientSum(policy, config.full_loss, plan)
        self._early: dict[int, tuple[int, GradientSum, OtherPolicies]] = {}
        self._next = 0
        self._others = OtherPolicies(policy, teacher, plan, config.kl, config.teacher)
        self._episodes: list[Episode] = []

    def add(self, episodes: Sequence[Episode], state: State | None) -> None:
        """Takes the gradient of some groups.

        Groups whose rewards are all equal cost nothing. The state is not kept: what the caller drops is freed. Groups may
        come in any order, and are summed up in their own: a sum of floats depends on it, and when a group ends, on time.

        Args:
            episodes: whole groups.
            state: the cache that sampling them left, a row each; None where no token was fed.

        Raises:
            ValueError: where a group has been added before, or the state is not of these episodes.
            StaleCacheError: where it is not of this policy.

        Example:
            >>> accumulation.add(played.episodes, played.state)
        """
        options = self._config
        again = {x.group for x in episodes} & {x.group for x in self._episodes}
        if again:
            raise ValueError(
                f"episodes: groups {sorted(again)} have been added already; an advantage compares all "
                f"episodes of a group, so add them together"
            )
        raw = compare(options, episodes)
        own = divisors(raw, episodes, options.normaliser, max_tokens=options.rollout.max_tokens).own
        # A micro-batch of more rows than there are in flight would be padding. One as long as the cache is not: segments
        # without a token cost nothing, and another number of them would be another program.
        group = options.rollout.group_size
        rows, together = _blocks(
            min(options.gradients.rows, options.rollout.groups_together * group), group
        )
        size = None if state is None else row_capacity(state)
        part, others = self._total.nothing(), self._others.nothing()
        batches = micro_batches(
            episodes,
            divide(raw, own),
            rows=rows,
            tokens=options.gradients.tokens,
            size=size,
            together=together,
            shares=[1 / divisor for divisor in own],
        )
        for batch in others.ask(batches, episodes):
            assert state is not None and batch.episodes is not None  # tokens were fed
            fan = math.gcd(batch.episodes.size, together)
            part.add(batch, take_rows(state, _rows_of(batch.episodes), fan=fan))
        self._episodes += episodes
        groups = {episode.group for episode in episodes}
        self._early[min(groups)] = len(groups), part, others
        while self._next in self._early:
            count, part, others = self._early.pop(self._next)
            self._join(part, others)
            self._next += count

    def finish(self) -> Learned:
        """Makes the optimizer step.

        Returns:
            What :func:`mintjax.train.learner.learn` returns for all episodes that were added, by group and member.

        Raises:
            NonFiniteError: if the loss or the gradient is nan or infinite. Nothing is updated.

        Example:
            >>> learned = accumulation.finish()
        """
        options = self._config
        for first in sorted(self._early):
            self._join(*self._early[first][1:])
        self._episodes.sort(key=lambda episode: (episode.group, episode.seat, episode.member))
        raw = compare(options, self._episodes)
        batch, own = divisors(
            raw, self._episodes, options.normaliser, max_tokens=options.rollout.max_tokens
        )
        self._total.divide(batch)
        advantages = divide(raw, [batch * divisor for divisor in own])
        learned = step_with(options, self._train_state, self._total, raw, advantages)
        return learned._replace(metrics=learned.metrics | self._others.metrics())

    def _join(self, part: GradientSum, others: OtherPolicies) -> None:
        self._total.join(part)
        self._others.join(others)


def _blocks(rows: int, group: int) -> tuple[int, int]:
    """Rows of a micro-batch, at most those wanted, that are whole groups or an even part of one; and rows of a block."""
    whole = [n for n in range(1, rows + 1) if n % group == 0 or group % n == 0]
    return whole[-1], min(whole[-1], group)


def _rows_of(episodes: Int[np.ndarray, " B"]) -> Int[np.ndarray, " B"]:
    """A row of the cache for each row of a batch: its episode's, or, where it is padding, that of the row before it.

    Any cache will do for a row without a token, but this one goes on from what the rows beside it begin with.
    """
    places = np.where(episodes < 0, 0, np.arange(episodes.size))
    return np.maximum(episodes[np.maximum.accumulate(places)], 0)
