"""How many programs a run compiles at most, told before it starts."""

from typing import NamedTuple

from mintjax.attention import BLOCK
from mintjax.cache import bucket
from mintjax.models.config import ModelConfig
from mintjax.renderers.segments import bucket as segment_bucket
from mintjax.train.batches import padded_length
from mintjax.train.config import TrainConfig


class Programs(NamedTuple):
    """The shapes that a run may meet; there is a program for each, compiled when it is met.

    Attributes:
        capacities: sizes of the rollout's cache; one program each decodes. A group's episodes share what they begin with, and
            their own rows are as small as that leaves them: a run meets few of these.
        segments: sizes of what a turn feeds; one program for each pair of these and a capacity extends the cache.
        rows: lengths that training rows are padded to; one program each takes a gradient, or a few where the numbers of
            trained tokens differ much.
    """

    capacities: tuple[int, ...]
    segments: tuple[int, ...]
    rows: tuple[int, ...]


def programs(config: TrainConfig, model: ModelConfig, tokens: int) -> Programs:
    """Lists the shapes of a run whose episodes have at most so many tokens.

    Args:
        config: the run.
        model: for its context.
        tokens: of the longest episode.

    Returns:
        The shapes, smallest first.

    Example:
        >>> programs(load_config("count_down"), policy.config, 192).capacities
        (64, 128, 256)
    """
    last = bucket(max(tokens, config.rollout.capacity))
    doublings = range((last // BLOCK).bit_length())
    context = bucket(model.context)
    return Programs(
        capacities=tuple(BLOCK << k for k in doublings if BLOCK << k <= context),
        segments=tuple(sorted({segment_bucket(n) for n in range(1, tokens + 1)})),
        rows=tuple(sorted({padded_length(n) for n in range(1, tokens + 1)})),
    )
