"""How many of a model's numbers a token meets: what its arithmetic follows from."""

import math

from mintjax.adapters import linear_shapes
from mintjax.models.config import ModelConfig


def met_by_a_token(config: ModelConfig, layer: int, shape: tuple[int, ...]) -> int:
    """How many numbers of a layer's weight, or of its adapter's factor, one token is multiplied by.

    Args:
        config: the decoder.
        layer: index of the layer.
        shape: the weight's; one of three dimensions is stacked over the layer's experts.

    Returns:
        All of them, or those of the experts that a token is sent to.

    Example:
        >>> met_by_a_token(config, 0, (32, 24))
        768
    """
    experts = config.experts_of(layer)
    if experts is None or len(shape) < 3:
        return math.prod(shape)
    return math.prod(shape[1:]) * experts.routing.per_token


def layer_numbers(config: ModelConfig, layer: int) -> int:
    """How many numbers of a layer's linears and router a token is multiplied by.

    Its operations are twice as many forwards, and twice again backwards where the weights are frozen, beside those of
    attention.

    Example:
        >>> sum(layer_numbers(config, layer) for layer in range(config.num_layers))
    """
    shapes = [*linear_shapes(config, layer).values()]
    experts = config.experts_of(layer)
    if experts is not None:
        shapes.append(experts.other_shapes(config.hidden_size)["router"])
    return sum(met_by_a_token(config, layer, shape) for shape in shapes)
