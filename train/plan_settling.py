"""The plan of a run, settled once: chosen where the configuration leaves it open, and kept for later starts.

What is free differs from start to start, and another plan rounds otherwise. So the choice is written into the run's
directory, and a run that goes on takes it from there.
"""

import json
from dataclasses import asdict, replace

from mintjax.policy import Policy
from mintjax.train.byte_sizes import parse_bytes
from mintjax.train.config import TrainConfig
from mintjax.train.durable import write_atomic
from mintjax.train.free_memory import free_memory
from mintjax.train.plan_choice import (
    PlanChoice,
    choose,
    longest_row,
    named_plan,
    plan_name,
    plan_needs,
)
from mintjax.train.plan_memory import shapes_of
from mintjax.train.run_directory import RunDirectory


def settle_plan(
    config: TrainConfig, policy: Policy, directory: RunDirectory
) -> tuple[TrainConfig, PlanChoice]:
    """The run's configuration with its plan decided, and the decision.

    Args:
        config: the run.
        policy: in memory already, so that what is free now is free for gradients.
        directory: the run's; ``plan.json`` in it holds the decision, where one was made.

    Returns:
        A configuration whose ``gradients.plan`` is not ``"auto"``, and why it is what it is.

    Raises:
        PlanMemoryError: where no plan fits.

    Example:
        >>> config, choice = settle_plan(config, policy, directory)
    """
    options = config.gradients
    if options.plan != "auto":
        return config, PlanChoice(named_plan(options), "gradients.plan names it")
    needs = plan_needs(config, shapes_of(policy))
    if directory.plan.exists():
        kept = json.loads(directory.plan.read_text(encoding="utf-8"))
        need = {(need.name, need.plan.segment): need for need in needs}[
            kept["name"], kept["segment"]
        ]
        choice = PlanChoice(need.plan, kept["why"], need, kept["tokens"], kept["memory"])
    else:
        memory = free_memory()[0] if options.memory is None else parse_bytes(options.memory)
        choice = choose(needs, longest_row(config, policy.config), memory)
        _keep(choice, directory)
    plan = choice.plan
    settled = replace(options, plan=plan.kind, remat=plan.remat, segment=plan.segment, memory=None)
    return replace(config, gradients=settled), choice


def _keep(choice: PlanChoice, directory: RunDirectory) -> None:
    """Write a decision for later starts, and for whoever wants to know."""
    assert choice.need is not None  # it was chosen by what it needs
    record = {
        "name": plan_name(choice.plan),
        **asdict(choice.plan),
        "why": choice.why,
        "tokens": choice.tokens,
        "need": choice.need.bytes(choice.tokens),
        "memory": choice.memory,
    }
    write_atomic(directory.plan, json.dumps(record, indent=2) + "\n")
