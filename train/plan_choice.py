"""Which gradient plan a run takes: the fastest one whose memory is there."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from mintjax.attention import block_of
from mintjax.cache import bucket
from mintjax.models.config import ModelConfig
from mintjax.train.batches import padded_length
from mintjax.train.byte_sizes import show_bytes
from mintjax.train.config import GradientConfig, TrainConfig
from mintjax.train.config_rollout import longest_conversation
from mintjax.train.plan import Plan
from mintjax.train.plan_memory import (
    PRODUCT_ROWS,
    PlanMemory,
    Shapes,
    plan_memory,
    token_bytes,
)

_FILL = 0.9  # of the memory there is: most estimates are within a tenth of what was measured, see docs/memory.md
# Tokens of a segment, the fastest first: products of few rows are slow, and longer segments attend within themselves.
_SEGMENTS = (256, 128, 64, 32)
_Kind = Literal["packed", "segments", "reverse_only"]
# Fastest first, each with its cost in units of one forward pass over the tokens. Of two that cost the same, the first
# has fewer and larger products.
PLAN_COSTS: dict[tuple[_Kind, bool], int] = {
    ("packed", False): 2,
    ("reverse_only", False): 2,
    ("packed", True): 3,
    ("reverse_only", True): 3,
    ("segments", False): 3,
    ("segments", True): 4,
}


class PlanMemoryError(ValueError):
    """No gradient plan fits into the memory that there is."""


@dataclass(frozen=True)
class PlanNeed:
    """A plan, and what it needs for a run's micro-batches.

    Attributes:
        plan: the plan.
        forwards: its cost, in units of one forward pass over the tokens.
        memory: of a micro-batch.
        rows: rows of a micro-batch.
        held: bytes that a token of capacity takes in the caches that the rollout left, for a plan that walks them.
        capacity: tokens that each of those caches has room for from the start.
    """

    plan: Plan
    forwards: int
    memory: PlanMemory
    rows: int
    held: int = 0
    capacity: int = 0

    @property
    def name(self) -> str:
        """The plan in a word."""
        return plan_name(self.plan)

    def bytes(self, tokens: int) -> int:
        """What the gradient takes when the longest row has so many tokens.

        Example:
            >>> need.bytes(4096)
        """
        size = padded_length(max(1, tokens))
        if self.plan.kind == "packed":
            size += -size % block_of(size)
        elif self.plan.kind == "segments":
            size += -size % self.plan.segment
        else:
            size = bucket(max(size, self.capacity))
        return self.memory.fixed + size * (self.rows * self.memory.per_token + self.held)


class PlanChoice(NamedTuple):
    """The plan that a run takes.

    Attributes:
        plan: the plan.
        why: in words.
        need: what it takes; None where the configuration names it, so that nothing was estimated.
        tokens: the longest row that was reckoned with; 0 where nothing was.
        memory: bytes that there were; 0 where nobody looked.
    """

    plan: Plan
    why: str
    need: PlanNeed | None = None
    tokens: int = 0
    memory: int = 0

    def metrics(self, tokens: int) -> dict[str, float]:
        """The choice in numbers: which plan runs, and what it needs for a step's longest row of so many tokens.

        Example:
            >>> PlanChoice(Plan("segments"), "gradients.plan names it").metrics(100)
            {'plan/segments': 1.0, 'plan/auto': 0.0}
        """
        found = {f"plan/{plan_name(self.plan)}": 1.0, "plan/auto": float(self.need is not None)}
        if self.need is None:
            return found
        # What the machine has is no part of what a run repeats.
        return found | {
            "plan/need_bytes": float(self.need.bytes(tokens)),
            "perf/plan_memory_bytes": float(self.memory),
        }

    def exceeded(self, tokens: int) -> bool:
        """Whether a step's longest row, of so many tokens, needs more than there was when the plan was chosen."""
        return self.need is not None and self.need.bytes(tokens) > self.memory

    def __str__(self) -> str:
        """One line to read."""
        cut = "" if self.plan.kind == "packed" else f", {self.plan.segment} tokens a segment"
        text = f"{plan_name(self.plan)}{cut}: {self.why}"
        if self.need is None:
            return text
        need, memory = show_bytes(self.need.bytes(self.tokens)), show_bytes(self.memory)
        return (
            f"{text}; {self.need.rows} rows of {self.tokens} tokens need about {need} of {memory}"
        )


def plan_name(plan: Plan) -> str:
    """A plan in a word.

    Example:
        >>> plan_name(Plan("packed", remat=True))
        'packed_remat'
    """
    return f"{plan.kind}_remat" if plan.remat else plan.kind


def named_plan(options: GradientConfig) -> Plan:
    """The plan that a configuration names.

    Raises:
        ValueError: where it leaves the choice open.

    Example:
        >>> named_plan(GradientConfig(plan="segments")).kind
        'segments'
    """
    if options.plan == "auto":
        raise ValueError(
            "gradients.plan: 'auto' names no plan; train() chooses one before the first step, and choose() does so here"
        )
    segment = Plan.segment if options.segment is None else options.segment
    return Plan(options.plan, segment, options.remat, attention=options.attention)


def longest_row(config: TrainConfig, model: ModelConfig) -> int:
    """The longest episode that a configuration lets one expect.

    It is ``rollout.capacity`` where that is set. Else it is what the policy may sample in all turns, since nothing tells
    how much an environment says. No episode is longer than ``rollout.max_episode_tokens`` or the model's context.

    Example:
        >>> longest_row(load_config("count_down"), policy.config)
        192
    """
    rollout = config.rollout
    most = longest_conversation(model.context, rollout.max_episode_tokens)
    return min(rollout.capacity or rollout.max_turns * rollout.max_tokens, most)


def plan_needs(config: TrainConfig, shapes: Shapes) -> list[PlanNeed]:
    """What each plan would need for a run, the fastest first.

    Args:
        config: for the sizes of micro-batches, segments and rollouts.
        shapes: the policy's.

    Returns:
        Every plan that can serve the run's loss and advantages, with and without rematerialisation, and with segments of
        several sizes where ``gradients.segment`` names none.

    Example:
        >>> config = replace(config, gradients=GradientConfig(segment=64))
        >>> [need.name for need in plan_needs(config, shapes_of(policy))]
        ['packed', 'reverse_only', 'packed_remat', 'reverse_only_remat', 'segments', 'segments_remat']
    """
    options, rollout = config.gradients, config.rollout
    # As if every row were as long as the longest: how much its group shares, nobody knows.
    caches = rollout.cache_rows * token_bytes(shapes).cache
    needs = []
    for (kind, remat), forwards in PLAN_COSTS.items():
        if kind == "reverse_only" and config.accumulation_refusal:
            continue
        plan = named_plan(replace(options, plan=kind, remat=remat, memory=None))
        sizes = _SEGMENTS if options.segment is None and kind != "packed" else (plan.segment,)
        for size in sizes:
            plan = replace(plan, segment=size)
            need = PlanNeed(plan, forwards, plan_memory(shapes, plan, options.rows), options.rows)
            if kind == "reverse_only":
                need = replace(need, held=caches, capacity=rollout.capacity)
            needs.append(need)
    return sorted(needs, key=_slowness)


def _slowness(need: PlanNeed) -> tuple[float, bool]:
    """Orders segment scans, all other plans before them as they come.

    The last pass of a rematerialised one costs what products of a quarter of the rows do.
    """
    if need.plan.kind != "segments":
        return (-math.inf, False)
    rows = min(need.rows * need.plan.segment, PRODUCT_ROWS)
    return (-rows / 4, False) if need.plan.remat else (-rows, True)


def choose(needs: Sequence[PlanNeed], tokens: int, memory: int) -> PlanChoice:
    """The fastest plan that fits, or the one that needs least.

    Args:
        needs: the plans, the fastest first.
        tokens: of the longest row.
        memory: bytes that a gradient may take.

    Returns:
        The first that leaves a tenth of the memory free; where none does, the one that needs least.

    Raises:
        PlanMemoryError: where even that one does not fit.

    Example:
        >>> choose(plan_needs(config, shapes), tokens=4096, memory=2**34).plan
    """
    for need in needs:
        if need.bytes(tokens) <= _FILL * memory:
            return PlanChoice(need.plan, "the fastest that fits", need, tokens, memory)
    need = min(needs, key=lambda need: need.bytes(tokens))
    if need.bytes(tokens) <= memory:
        return PlanChoice(need.plan, "the one that needs least", need, tokens, memory)
    raise PlanMemoryError(
        f"gradients.memory: the plan that needs least, {need.name}, takes about {show_bytes(need.bytes(tokens))} for "
        f"{need.rows} rows of {tokens} tokens, and there are {show_bytes(memory)}. Lower gradients.rows, "
        f"gradients.segment or rollout.capacity (without it, rollout.max_turns or rollout.max_tokens), or raise "
        f"gradients.memory if there is more"
    )
