"""The decoder written plainly, for one row, with dense attention and nothing shared with the real one: a reference.

It runs in numpy, in float64 and without compiling anything; or in jax.numpy, in the precision of the weights, where a
gradient is wanted, which is then JAX's own. There is no cache, no block and no padding.
"""

from types import ModuleType
from typing import Any

import jax
import numpy as np

from mintjax.policy import Policy


def _norm(x: Any, weight: Any, eps: float) -> Any:
    return x / ((x**2).mean(-1, keepdims=True) + eps) ** 0.5 * weight


def _linear(x: Any, weight: Any, pair: Any, scale: float) -> Any:
    return x @ (weight if pair is None else weight + scale * pair["b"] @ pair["a"]).T


def _log_softmax(x: Any, xp: ModuleType) -> Any:
    x = x - x.max(-1, keepdims=True)
    return x - xp.log(xp.exp(x).sum(-1, keepdims=True))


def naive_logits(policy: Policy, tokens: np.ndarray, xp: ModuleType = np) -> Any:
    """Logits at every position of one row, ``[N, V]``; default RoPE only."""
    c, scale = policy.config, policy.lora.alpha / policy.lora.rank
    base, adapter = policy.base, policy.adapter or {"layers": [{}] * policy.config.num_layers}
    if xp is np:
        base, adapter = jax.tree.map(lambda x: np.asarray(x, np.float64), (base, adapter))
    n, half = len(tokens), c.head_dim // 2
    angle = np.arange(n)[:, None] / c.rope.theta ** (np.arange(half) / half)
    rotation = np.exp(1j * angle)[:, None]

    def rotate(x: Any) -> Any:
        z = (x[..., :half] + 1j * x[..., half:]) * rotation
        return xp.concatenate([z.real, z.imag], -1)

    x = base["embed"][tokens]
    for w, a in zip(base["layers"], adapter["layers"], strict=True):
        y = _norm(x, w["attn_norm"], c.norm_eps)
        q, k, v = (
            _linear(y, w[name], a.get(name), scale).reshape(n, -1, c.head_dim) for name in "qkv"
        )
        if c.qk_norm:
            q, k = _norm(q, w["q_norm"], c.norm_eps), _norm(k, w["k_norm"], c.norm_eps)
        q, k = rotate(q), rotate(k)
        k, v = (xp.repeat(y, c.num_heads // c.num_kv_heads, axis=1) for y in (k, v))
        scores = xp.einsum("nhd,mhd->hnm", q, k) / np.sqrt(c.head_dim)
        scores = xp.where(np.tri(n, dtype=bool), scores, -np.inf)
        attended = xp.einsum("hnm,mhd->nhd", xp.exp(_log_softmax(scores, xp)), v).reshape(n, -1)
        x = x + _linear(attended, w["o"], a.get("o"), scale)
        y = _norm(x, w["mlp_norm"], c.norm_eps)
        gate, up = (_linear(y, w[name], a.get(name), scale) for name in ("gate", "up"))
        x = x + _linear(gate / (1 + xp.exp(-gate)) * up, w["down"], a.get("down"), scale)
    head = base.get("unembed", base["embed"])
    return _linear(_norm(x, base["norm"], c.norm_eps), head, adapter.get("unembed"), scale)


def naive_logprobs(
    policy: Policy, tokens: np.ndarray, temperature: float = 1.0, xp: ModuleType = np
) -> Any:
    """Log probability of each token but the first given those before it, ``[N - 1]``."""
    table = _log_softmax(naive_logits(policy, tokens, xp)[:-1] / temperature, xp)
    return table[np.arange(len(tokens) - 1), tokens[1:]]
