"""The decoder written plainly, for one row, with dense attention and nothing shared with the real one: a reference.

Everything is in the precision of the weights, gradients are JAX's own, and there is no cache, block or padding.
"""

import jax
import jax.numpy as jnp
import numpy as np

from mintjax.policy import Policy


def _norm(x, weight, eps):
    return x / jnp.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def _linear(x, weight, pair, scale):
    return x @ (weight if pair is None else weight + scale * pair["b"] @ pair["a"]).T


def naive_logits(policy: Policy, tokens: np.ndarray) -> jax.Array:
    """Logits at every position of one row, ``[N, V]``; default RoPE only."""
    c, scale = policy.config, policy.lora.alpha / policy.lora.rank
    n, half = len(tokens), c.head_dim // 2
    angle = np.arange(n)[:, None] / c.rope.theta ** (np.arange(half) / half)
    rotation = np.exp(1j * angle)[:, None]

    def rotate(x):
        z = (x[..., :half] + 1j * x[..., half:]) * rotation
        return jnp.concatenate([z.real, z.imag], -1)

    x = policy.base["embed"][tokens]
    adapters = policy.adapter or {"layers": [{}] * c.num_layers}
    for w, a in zip(policy.base["layers"], adapters["layers"], strict=True):
        y = _norm(x, w["attn_norm"], c.norm_eps)
        q, k, v = (
            _linear(y, w[name], a.get(name), scale).reshape(n, -1, c.head_dim) for name in "qkv"
        )
        if c.qk_norm:
            q, k = _norm(q, w["q_norm"], c.norm_eps), _norm(k, w["k_norm"], c.norm_eps)
        q, k = rotate(q), rotate(k)
        k, v = (jnp.repeat(y, c.num_heads // c.num_kv_heads, axis=1) for y in (k, v))
        scores = jnp.einsum("nhd,mhd->hnm", q, k) / np.sqrt(c.head_dim)
        scores = jnp.where(np.tri(n, dtype=bool), scores, -jnp.inf)
        attended = jnp.einsum("hnm,mhd->nhd", jax.nn.softmax(scores, -1), v).reshape(n, -1)
        x = x + _linear(attended, w["o"], a.get("o"), scale)
        y = _norm(x, w["mlp_norm"], c.norm_eps)
        gate, up = (_linear(y, w[name], a.get(name), scale) for name in ("gate", "up"))
        x = x + _linear(gate / (1 + jnp.exp(-gate)) * up, w["down"], a.get("down"), scale)
    head = policy.base.get("unembed", policy.base["embed"])
    return _linear(_norm(x, policy.base["norm"], c.norm_eps), head, adapters.get("unembed"), scale)


def naive_logprobs(policy: Policy, tokens: np.ndarray, temperature: float = 1.0) -> jax.Array:
    """Log probability of each token but the first given those before it, ``[N - 1]``."""
    table = jax.nn.log_softmax(naive_logits(policy, tokens)[:-1] / temperature, -1)
    return table[np.arange(len(tokens) - 1), tokens[1:]]
