"""gpt-oss's attention equals transformers': sinks, biases on all four linears, windows in every other layer, yarn.

Its experts are not implemented, so both have a plain gated MLP in their place.
"""

import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers

from mintjax.adapters import LoraConfig
from mintjax.models.config import ModelConfig, RopeConfig
from mintjax.policy import Policy
from tests.transformers_models import CONTEXT, FACTOR, ORIGINAL_CONTEXT, logits, random_tokens

LOGITS_ATOL = 1e-4
CONFIG = ModelConfig(
    name="gpt-oss's attention",
    vocab_size=96,
    hidden_size=48,
    intermediate_size=40,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    context=CONTEXT,
    norm_eps=1e-5,
    tied_head=False,
    biases=("q", "k", "v", "o"),
    windows=(24, None),
    sinks=True,
    rope=RopeConfig("yarn", 150000.0, FACTOR, ORIGINAL_CONTEXT, truncate=False),
)
LAYER = {
    "attn_norm": "input_layernorm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "sinks": "self_attn.sinks",
    **{name: f"self_attn.{name}_proj.weight" for name in "qkvo"},
    **{f"{name}_bias": f"self_attn.{name}_proj.bias" for name in "qkvo"},
    **{name: f"mlp.{name}.weight" for name in ("gate", "up", "down")},
}


class PlainMLP(torch.nn.Module):
    """A gated MLP that returns what the experts return: its output, and nothing of a router."""

    def __init__(self):
        super().__init__()
        wide, narrow = CONFIG.intermediate_size, CONFIG.hidden_size
        self.gate, self.up = (torch.nn.Linear(narrow, wide, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(wide, narrow, bias=False)

    def forward(self, x):
        return self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x)), None


@pytest.fixture(scope="module")
def model():
    model = transformers.GptOssForCausalLM(
        transformers.GptOssConfig(
            vocab_size=CONFIG.vocab_size,
            hidden_size=CONFIG.hidden_size,
            intermediate_size=CONFIG.intermediate_size,
            num_hidden_layers=CONFIG.num_layers,
            num_local_experts=2,
            num_experts_per_tok=1,
            num_attention_heads=CONFIG.num_heads,
            num_key_value_heads=CONFIG.num_kv_heads,
            head_dim=CONFIG.head_dim,
            max_position_embeddings=CONTEXT,
            sliding_window=CONFIG.windows[0],
            layer_types=["sliding_attention", "full_attention"],
            rope_parameters={
                "rope_type": "yarn",
                "rope_theta": CONFIG.rope.theta,
                "factor": FACTOR,
                "original_max_position_embeddings": ORIGINAL_CONTEXT,
                "truncate": False,
            },
        )
    )
    for layer in model.model.layers:
        layer.mlp = PlainMLP()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, x in model.named_parameters():
            draw = torch.randn(x.shape, generator=generator)
            norm = name.endswith("norm.weight")
            x.copy_(
                draw * x.shape[1] ** -0.5 if x.ndim == 2 else norm + (0.3 if norm else 1) * draw
            )
    return model.eval()


def test_logits_equal_transformers(model):
    tensors = {name: jnp.asarray(x.numpy()) for name, x in model.state_dict().items()}
    base = {
        "embed": tensors["model.embed_tokens.weight"],
        "norm": tensors["model.norm.weight"],
        "unembed": tensors["lm_head.weight"],
        "layers": tuple(
            {key: tensors[f"model.layers.{i}.{name}"] for key, name in LAYER.items()}
            for i in range(CONFIG.num_layers)
        ),
    }
    policy = Policy(CONFIG, LoraConfig(), base, None, jnp.int32(0))
    tokens = random_tokens(model)
    got = policy.logits(jnp.asarray(tokens))
    assert np.abs(got - logits(model, tokens)).max() < LOGITS_ATOL
