"""One token a row: which tokens can be drawn, how often, and what is written down about them."""

import jax
import numpy as np
import pytest

from mintjax.sampling import sample_tokens

ROWS, VOCABULARY = 2000, 700  # not a multiple of the block that the search walks in


@pytest.fixture(scope="module")
def draw():
    compiled = jax.jit(sample_tokens)
    logits = (2 * np.random.default_rng(0).standard_normal(VOCABULARY)).astype(np.float32)
    uniform = ((np.arange(ROWS) + 0.5) / ROWS).astype(np.float32)

    def run(temperature=1.0, top_k=0, top_p=1.0):
        table = np.broadcast_to(logits, (ROWS, VOCABULARY))
        tokens, logprobs = compiled(
            table, uniform, np.float32(temperature), np.int32(top_k), np.float32(top_p)
        )
        return np.asarray(tokens), np.asarray(logprobs), logits.astype(np.float64)

    yield run
    assert compiled._cache_size() == 1, "temperature, top_k and top_p are traced"


def probabilities(logits, temperature=1.0):
    p = np.exp(logits / temperature - np.max(logits / temperature))
    return p / p.sum()


def kept_by(p, top_k, top_p):
    order = np.argsort(-p)
    order = order[: top_k or None]
    before = np.cumsum(p[order]) - p[order]
    kept = np.zeros(p.shape)
    kept[order[before < top_p * p[order].sum()]] = 1
    return kept * p / (kept * p).sum()


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [
        (1.0, 0, 1.0),
        (0.7, -1, 1.0),
        (1.0, 5, 1.0),
        (1.0, 0, 0.6),
        (1.3, 40, 0.5),
        (1.0, 1, 1.0),
        (1.0, 0, 1e-6),
    ],
)
def test_uniform_numbers_spread_evenly_give_the_distribution(draw, temperature, top_k, top_p):
    tokens, logprobs, logits = draw(temperature, top_k, top_p)
    full = probabilities(logits, temperature)
    want = kept_by(full, max(top_k, 0), top_p)
    got = np.bincount(tokens, minlength=VOCABULARY) / ROWS
    # Evenly spaced numbers hit an interval as often as its length says, to within one.
    assert np.abs(got - want).max() <= 1.01 / ROWS
    np.testing.assert_allclose(
        logprobs, np.log(full[tokens]), rtol=0, atol=1e-5, err_msg="of the whole distribution"
    )


def test_zero_temperature_takes_the_likeliest_and_scores_it_unscaled(draw):
    tokens, logprobs, logits = draw(0.0, 3, 0.5)
    assert (tokens == logits.argmax()).all()
    np.testing.assert_allclose(logprobs, np.log(probabilities(logits).max()), rtol=0, atol=1e-5)
