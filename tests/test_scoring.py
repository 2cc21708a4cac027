"""Log probabilities of hidden states, of which only the first are real."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from mintjax.scoring import COUNTED_CHUNK, token_logprobs
from tests.tiny import CONFIG, relative_difference, tiny_policy

TOLERANCE = 1e-6


def test_chunks_past_the_count_are_not_run():
    policy, real = tiny_policy(), COUNTED_CHUNK - 3
    rng = np.random.default_rng(0)
    hidden = rng.standard_normal((3 * COUNTED_CHUNK, CONFIG.hidden_size)).astype(np.float32)
    labels = rng.integers(0, CONFIG.vocab_size, len(hidden))
    # What is multiplied with them, in either direction, would be nan.
    padded = np.where(np.arange(len(hidden))[:, None] < COUNTED_CHUNK, hidden, np.nan)

    def total(adapter, hidden, labels, count=None):
        score = partial(token_logprobs, policy.replace(adapter=adapter))
        return jnp.sum(score(hidden, labels, 0.7, count)[:real])

    gradient = jax.jit(jax.value_and_grad(total))
    value, grads = gradient(policy.adapter, padded, labels, real)
    wanted, reference = gradient(policy.adapter, hidden[:real], labels[:real])
    np.testing.assert_allclose(value, wanted, rtol=TOLERANCE)
    assert relative_difference(grads["unembed"], reference["unembed"]) < TOLERANCE
