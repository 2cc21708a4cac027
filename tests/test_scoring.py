"""Log probabilities of hidden states, of which only the first are real."""

from dataclasses import replace
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

    gradient = jax.jit(jax.value_and_grad(partial(_total, policy, real), argnums=(0, 1)))
    value, (grads, d_hidden) = gradient(policy.adapter, padded, labels, real)
    wanted, (reference, d_reference) = gradient(policy.adapter, hidden[:real], labels[:real])
    np.testing.assert_allclose(value, wanted, rtol=TOLERANCE)
    assert relative_difference(grads["unembed"], reference["unembed"]) < TOLERANCE
    assert relative_difference(d_hidden[:real], d_reference) < TOLERANCE
    assert not d_hidden[real:].any()


def test_a_further_chunk_keeps_no_copy_of_the_head():
    """Differentiated by JAX, the condition around a chunk would keep one for each."""
    policy = tiny_policy(config=replace(CONFIG, vocab_size=4096))
    gradient = jax.jit(jax.value_and_grad(partial(_total, policy, 8), argnums=(0, 1)))

    def temporary(chunks: int) -> int:
        rows = chunks * COUNTED_CHUNK
        hidden = np.ones((rows, CONFIG.hidden_size), np.float32)
        compiled = gradient.lower(policy.adapter, hidden, np.zeros(rows, np.int32), 8).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    few, many = 2, 6
    # Beside what each hidden state takes, forwards and backwards.
    states = (many - few) * COUNTED_CHUNK * CONFIG.hidden_size * 4
    assert (
        temporary(many) - temporary(few) < 4 * states < (many - few) * policy.base["unembed"].nbytes
    )


def _total(policy, real, adapter, hidden, labels, count=None):
    score = partial(token_logprobs, policy.replace(adapter=adapter))
    return jnp.sum(score(hidden, labels, 0.7, count)[:real])
