"""Log probabilities of hidden states, of which only the first are real."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mintjax import scoring
from mintjax.adapters import LoraConfig
from mintjax.scoring import COUNTED_CHUNK, logprobs_and_slopes, token_logprobs
from tests.tiny import CONFIG, relative_difference, tiny_policy

TOLERANCE = 1e-6
EXACT = 1e-13  # in float64
FROZEN = LoraConfig(rank=3)


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


def test_a_slope_is_the_gradient_of_its_own_score():
    real = COUNTED_CHUNK + 5
    rng = np.random.default_rng(1)
    with jax.enable_x64(True):
        policy = tiny_policy(jnp.float64, lora=FROZEN)
        hidden = rng.standard_normal((3 * COUNTED_CHUNK, CONFIG.hidden_size))
        labels = rng.integers(0, CONFIG.vocab_size, len(hidden)).astype(np.int32)
        states = jnp.asarray(hidden)
        logprobs, slopes = logprobs_and_slopes(policy, states, labels, 0.7, real)
        logits = hidden @ np.asarray(policy.base["unembed"]).T / 0.7
        total = np.exp(logits).sum(-1, keepdims=True)
        scored = np.take_along_axis(logits - np.log(total), labels[:, None], 1)[:, 0]
        assert relative_difference(logprobs[:real], scored[:real]) < EXACT
        # The difference of two sums over the vocabulary: the token's own row, and the mean of all rows.
        head = np.asarray(policy.base["unembed"])
        wanted = (head[labels] - np.exp(logits) / total @ head) / 0.7
        assert relative_difference(slopes[:real], wanted[:real]) < EXACT
        assert not np.asarray(slopes[2 * COUNTED_CHUNK :]).any()
        # And so is what JAX gets of the scores themselves.
        score = partial(_total, policy, real)
        found = jax.grad(score, argnums=1)(policy.adapter, states, labels, real)
        assert relative_difference(found[:real], wanted[:real]) < EXACT


def test_rows_of_few_real_states_share_full_chunks(monkeypatch):
    chunks, logits = [], scoring._logits

    def counted(*args, **kwargs):
        jax.debug.callback(lambda: chunks.append(None))
        return logits(*args, **kwargs)

    monkeypatch.setattr(scoring, "_logits", counted)
    count = np.array([COUNTED_CHUNK // 2, 0, 1, COUNTED_CHUNK // 2], np.int32)
    shape = len(count), COUNTED_CHUNK
    rng = np.random.default_rng(2)
    with jax.enable_x64(True):
        policy = tiny_policy(jnp.float64, lora=FROZEN)
        hidden = jnp.asarray(rng.standard_normal((*shape, CONFIG.hidden_size)))
        labels = rng.integers(0, CONFIG.vocab_size, shape).astype(np.int32)
        found = logprobs_and_slopes(policy, hidden, labels, 0.7, count)
        found = *found, token_logprobs(policy, hidden, labels, 0.7, count)
        jax.effects_barrier()
        # Each of the two computes a full chunk, and one of the state that is left. Row by row it would be one a row.
        assert len(chunks) == 2 * 2
        for row, real in enumerate(count):
            states, wanted = hidden[row, :real], labels[row, :real]
            if real:
                one_row = logprobs_and_slopes(policy, states, wanted, 0.7)
                for all_rows, alone in zip(found, (*one_row, one_row[0]), strict=True):
                    assert relative_difference(all_rows[row, :real], alone) < EXACT


@pytest.mark.parametrize("count", [None, 5], ids=["all", "counted"])
def test_a_frozen_heads_logits_are_made_once(count):
    policy = tiny_policy(lora=FROZEN, config=replace(CONFIG, vocab_size=4096))
    hidden = np.ones((COUNTED_CHUNK, CONFIG.hidden_size), np.float32)
    labels = np.zeros(COUNTED_CHUNK, np.int32)
    gradient = jax.jit(jax.value_and_grad(partial(_total, policy, 5), argnums=1))
    text = gradient.lower(policy.adapter, hidden, labels, count).as_text()
    # The logits, and what flows from them.
    assert sum("dot_general" in line and "4096" in line for line in text.splitlines()) == 2


def _total(policy, real, adapter, hidden, labels, count=None):
    score = partial(token_logprobs, policy.replace(adapter=adapter))
    return jnp.sum(score(hidden, labels, 0.7, count)[:real])
