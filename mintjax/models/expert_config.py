"""What a mixture of experts is made of: how many, how wide, in which layers, and how tokens are routed to them."""

from dataclasses import dataclass

ROUTING_KINDS = ("softmax", "sigmoid", "chosen_softmax")
ACTIVATIONS = ("silu", "clamped_swiglu")


@dataclass(frozen=True)
class RoutingConfig:
    """How a token's router logits become a choice of experts and their weights.

    Attributes:
        kind: ``"softmax"`` over all experts before the choice (Mixtral, Qwen3-MoE); ``"sigmoid"`` of each expert, with
            a correction of the choice alone and a choice of groups before that of experts (DeepSeek-V3, Kimi-K2); or
            ``"chosen_softmax"``, a softmax over the chosen experts' logits (gpt-oss).
        experts: how many there are.
        per_token: how many a token is sent to.
        normalise: whether the chosen weights are divided by their sum (softmax, sigmoid).
        groups: into how many groups of neighbours the experts fall (sigmoid).
        chosen_groups: how many groups a token's experts may come from (sigmoid).
        scale: what the weights are multiplied by in the end (sigmoid).
    """

    kind: str
    experts: int
    per_token: int
    normalise: bool = False
    groups: int = 1
    chosen_groups: int = 1
    scale: float = 1.0

    def __post_init__(self) -> None:
        """Refuse numbers under which there is no such choice."""
        if self.kind not in ROUTING_KINDS:
            raise ValueError(
                f"routing.kind: expected one of {ROUTING_KINDS}, got {self.kind!r}; this kind is not implemented"
            )
        if not 1 <= self.per_token <= self.experts:
            raise ValueError(
                f"routing.per_token: expected 1 to {self.experts}, the number of experts, got {self.per_token}"
            )
        if self.kind != "sigmoid" and (self.groups, self.chosen_groups, self.scale) != (1, 1, 1.0):
            raise ValueError(
                f"routing: groups, chosen_groups and scale are of kind 'sigmoid', got {self}; leave them out"
            )
        if self.kind == "chosen_softmax" and self.normalise:
            raise ValueError(
                "routing.normalise: weights of kind 'chosen_softmax' add up to 1 already; leave it out"
            )
        if self.kind == "sigmoid":
            self._check_groups()

    def _check_groups(self) -> None:
        if self.experts % self.groups or not 1 <= self.chosen_groups <= self.groups:
            raise ValueError(
                f"routing: expected groups that divide {self.experts} experts, and 1 to groups chosen, got "
                f"groups={self.groups}, chosen_groups={self.chosen_groups}"
            )
        size = self.experts // self.groups
        if size < 2 or self.per_token > self.chosen_groups * size:
            raise ValueError(
                f"routing: {self.groups} groups of {size} experts: a group is scored by its two best, and the "
                f"{self.chosen_groups} chosen must hold the {self.per_token} experts of a token; have fewer groups"
            )


# Weights that are float32 whatever the others are in: a choice hangs on their last digits.
FLOAT32_WEIGHTS = frozenset({"router_correction"})


@dataclass(frozen=True)
class ExpertsConfig:
    """The feed-forward half of those layers that are mixtures of experts.

    Attributes:
        routing: how tokens choose.
        intermediate_size: width of one expert.
        shared_size: width of the gated MLP that every token runs beside its experts; 0 for none. DeepSeek's several
            shared experts are one MLP of their widths' sum.
        dense_layers: indices of the layers that have a plain gated MLP instead, ascending.
        activation: ``"silu"``, or ``"clamped_swiglu"`` (gpt-oss).
        bias: whether the router and each expert's linears have one.
    """

    routing: RoutingConfig
    intermediate_size: int
    shared_size: int = 0
    dense_layers: tuple[int, ...] = ()
    activation: str = "silu"
    bias: bool = False

    def __post_init__(self) -> None:
        """Refuse an activation that is not implemented."""
        if self.activation not in ACTIVATIONS:
            raise ValueError(
                f"experts.activation: expected one of {ACTIVATIONS}, got {self.activation!r}; it is not implemented"
            )

    def linear_shapes(self, width: int) -> dict[str, tuple[int, ...]]:
        """Shapes of a layer's linears by name, ``(experts, out, in)`` or ``(out, in)``, all of which may have adapters.

        Example:
            >>> ExpertsConfig(RoutingConfig("softmax", 8, 2), 5).linear_shapes(3)["experts_up"]
            (8, 5, 3)
        """
        e, f, s = self.routing.experts, self.intermediate_size, self.shared_size
        shapes: dict[str, tuple[int, ...]] = {
            "experts_gate": (e, f, width),
            "experts_up": (e, f, width),
            "experts_down": (e, width, f),
        }
        if s:
            shapes |= {
                "shared_gate": (s, width),
                "shared_up": (s, width),
                "shared_down": (width, s),
            }
        return shapes

    def other_shapes(self, width: int) -> dict[str, tuple[int, ...]]:
        """Shapes of a layer's other weights, which are frozen always: the router and biases.

        Example:
            >>> ExpertsConfig(RoutingConfig("softmax", 8, 2), 5).other_shapes(3)
            {'router': (8, 3)}
        """
        e, f = self.routing.experts, self.intermediate_size
        shapes: dict[str, tuple[int, ...]] = {"router": (e, width)}
        if self.routing.kind == "sigmoid":
            shapes["router_correction"] = (e,)
        if self.bias:
            shapes["router_bias"] = (e,)
            shapes |= {"experts_gate_bias": (e, f), "experts_up_bias": (e, f)}
            shapes["experts_down_bias"] = (e, width)
        return shapes
