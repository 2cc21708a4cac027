"""``mintjax plan``: what a run would take in memory and compile, before anything starts."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mintjax.cli.experiment import read_experiment

if TYPE_CHECKING:
    from rich.table import Table

    from mintjax.models.config import ModelConfig
    from mintjax.train.config import TrainConfig
    from mintjax.train.plan_choice import PlanNeed
    from mintjax.train.plan_memory import Shapes

_USAGE = """usage: mintjax plan CONFIG.yaml [field=value | --field value]... [--tokens N]

Print which gradient plan mintjax train would take with the same arguments, what each plan needs, what
else takes memory, and how many programs there are to compile. The model's weights are not read.

options:
  --tokens N     reckon with a longest episode of N tokens, instead of what the configuration lets expect
  --help         show this
"""


def plan(arguments: Sequence[str]) -> int:
    """Run ``mintjax plan``.

    Args:
        arguments: the command line after ``plan``.

    Returns:
        The exit status.

    Raises:
        ConfigError: if the configuration cannot be used.
        PlanMemoryError: if the choice is left open and no plan fits; the tables are printed all the same.

    Example:
        >>> plan(["count_down", "gradients.plan=auto", "gradients.memory=2GiB"])
    """
    if {"-h", "--help"} & set(arguments):
        print(_USAGE, end="")
        return 0
    from rich.console import Console

    from mintjax.loading import load_model_config
    from mintjax.train.byte_sizes import show_bytes
    from mintjax.train.plan_choice import PlanChoice, choose, longest_row, named_plan, plan_needs

    tokens, rest = _take_tokens(arguments)
    config = read_experiment(rest)
    model, dtype = load_model_config(config.model.name, dtype=config.model.dtype)
    shapes = _shapes(config, model, dtype.name)
    tokens = min(tokens or longest_row(config, model), model.context)
    resident = dict(_resident(config, shapes, tokens))
    memory, source = _memory(config, shapes)
    needs = plan_needs(config, shapes)
    console = Console(highlight=False)
    console.print(f"{config.name}: {model.name}, {model.num_layers} layers, {dtype.name}")
    console.print(
        f"longest episode: {tokens} tokens; micro-batches of {config.gradients.rows} rows"
    )
    console.print(_sizes(resident))
    console.print(_plans(needs, tokens))
    console.print(f"for gradients: {show_bytes(memory)}, {source}")
    console.print("\n".join(_compiled(config, model, tokens)))
    if config.gradients.plan == "auto":
        choice = choose(needs, tokens, memory)
    else:
        choice = PlanChoice(named_plan(config.gradients), "gradients.plan names it")
    console.print(f"\n[bold]{choice}[/bold]", soft_wrap=True)
    return 0


def _take_tokens(arguments: Sequence[str]) -> tuple[int | None, list[str]]:
    """The value of ``--tokens``, and the arguments without it."""
    from mintjax.train.config import ConfigError

    rest = list(arguments)
    places = [i for i, text in enumerate(rest) if text.split("=")[0] == "--tokens"]
    if not places:
        return None, rest
    option = rest.pop(places[0])
    value = option.partition("=")[2]
    if "=" not in option:
        value = rest.pop(places[0]) if places[0] < len(rest) else "the end of the command line"
    if len(places) > 1 or not value.isdecimal() or int(value) < 1:
        raise ConfigError(f"--tokens: expected one number of at least 1, got {value}")
    return int(value), rest


def _shapes(config: "TrainConfig", model: "ModelConfig", dtype: str) -> "Shapes":
    """What the policy will be."""
    from mintjax.adapters import LoraConfig
    from mintjax.train.plan_memory import Shapes

    options = config.model
    trained = (options.train_attn, options.train_mlp, options.train_unembed)
    return Shapes(model, LoraConfig(options.rank, options.alpha, *trained), dtype)


def _resident(config: "TrainConfig", shapes: "Shapes", tokens: int) -> Iterator[tuple[str, int]]:
    """What takes memory beside gradients, and how much."""
    from mintjax.cache import bucket
    from mintjax.train.plan_memory import adapter_bytes, base_bytes, token_bytes

    rows = config.rollout.cache_rows
    capacity = bucket(max(tokens, config.rollout.capacity))
    yield "base weights", base_bytes(shapes)
    yield "adapter", adapter_bytes(shapes)
    yield "optimizer, two moments", 2 * adapter_bytes(shapes)
    yield (
        f"rollout's cache, {rows} rows of {capacity} tokens at most",
        rows * capacity * token_bytes(shapes).cache,
    )


def _memory(config: "TrainConfig", shapes: "Shapes") -> tuple[int, str]:
    """Bytes that gradients may take once the policy is loaded, and who says so."""
    from mintjax.train.byte_sizes import parse_bytes
    from mintjax.train.free_memory import free_memory
    from mintjax.train.plan_memory import adapter_bytes, base_bytes

    if config.gradients.memory is not None:
        return parse_bytes(config.gradients.memory), "by gradients.memory"
    free, source = free_memory()
    left = free - base_bytes(shapes) - 3 * adapter_bytes(shapes)
    return max(0, left), f"what is {source} less weights, adapter and optimizer"


def _sizes(resident: "dict[str, int]") -> "Table":
    """A table of what stands in memory beside gradients."""
    from rich.table import Table

    from mintjax.train.byte_sizes import show_bytes

    table = Table("beside gradients")
    table.add_column("size", justify="right")
    for name, size in resident.items():
        table.add_row(name, show_bytes(size))
    return table


def _plans(needs: "list[PlanNeed]", tokens: int) -> "Table":
    """A table of the plans and what each needs."""
    from rich.table import Table

    from mintjax.train.byte_sizes import show_bytes

    table = Table("gradient plan")
    for title in ("segment", "forwards", "bytes a token", "fixed", f"at {tokens} tokens"):
        table.add_column(title, justify="right")
    for need in needs:
        slope, fixed = need.memory
        table.add_row(
            need.name,
            "" if need.plan.kind == "packed" else str(need.plan.segment),
            str(need.forwards),
            f"{slope + need.held / need.rows:,.0f}",
            show_bytes(fixed),
            show_bytes(need.bytes(tokens)),
        )
    return table


def _compiled(config: "TrainConfig", model: "ModelConfig", tokens: int) -> Iterator[str]:
    """What there is to compile at most, in lines."""
    from mintjax.train.plan_programs import programs

    def listed(sizes: Sequence[int]) -> str:
        return ", ".join(map(str, sizes))

    found = programs(config, model, tokens)
    decode, extend, rows = (
        len(found.capacities),
        len(found.capacities) * len(found.segments),
        len(found.rows),
    )
    yield "programs to compile, at most; each when its shape is first met:"
    yield f"  {decode} to decode, one a cache of {listed(found.capacities)} tokens"
    yield f"  {extend} to extend, one a cache and a segment of {listed(found.segments)} tokens"
    yield f"  {rows} for gradients, one a row of {listed(found.rows)} tokens"
