"""Packed documents have the gradient that they have alone, whatever the layout, and do not see each other."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mintjax.train.gradients import add_gradients, gradients
from mintjax.train.losses import CrossEntropy
from mintjax.train.packing import Document, lay_out
from mintjax.train.plan import Plan
from mintjax.train.plan_arguments import plan_arguments, row_numbers, tokens_run
from tests.naive import naive_logprobs
from tests.tiny import CONFIG, relative_difference, tiny_policy

SAME = 1e-12  # relative, of float64 gradients summed in another order
LAYOUTS = {
    "packed, read in blocks": ({"rows": 1, "row_tokens": 320}, Plan()),
    "packed, other rows, remat": ({"rows": 2, "row_tokens": 160}, Plan(remat=True)),
    "apart, segments": (
        {"rows": 4, "row_tokens": 320, "packing": False},
        Plan("segments", segment=64),
    ),
}
ONE_LAYER = replace(CONFIG, num_layers=1)


def documents(*lengths):
    rng = np.random.default_rng(len(lengths))
    found = []
    for length in lengths:
        weights = rng.random(length) * (rng.random(length) < 0.6)
        weights[0] = 0
        tokens = rng.integers(0, CONFIG.vocab_size, length).astype(np.int32)
        found.append((Document(tokens, weights.astype(np.float32)),))
    return found


EXAMPLES = documents(150, 90, 33, 2)
LENGTH = 275


def total(policy, batches, plan=Plan()):
    grads, value = None, 0.0
    for batch in batches:
        more, metrics = gradients(policy, batch, CrossEntropy(), plan)
        grads = more if grads is None else add_gradients(grads, more)
        value += float(metrics.loss)
    return grads, value


@pytest.fixture(scope="module")
def case():
    """A policy in float64, and the gradient of the documents' cross entropy as JAX takes it of the naive decoder."""
    with jax.enable_x64(True):
        policy = tiny_policy(np.float64, config=ONE_LAYER)

        def loss(adapter):
            moved = policy.replace(adapter=adapter)
            return -sum(
                jnp.sum(x.weights[1:] * naive_logprobs(moved, x.tokens, xp=jnp))
                for (x,) in EXAMPLES
            )

        value, grads = jax.jit(jax.value_and_grad(loss))(policy.adapter)
        yield policy, float(value), grads


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_has_the_naive_gradient(case, layout):
    policy, value, want = case
    options, plan = LAYOUTS[layout]
    batches = lay_out(EXAMPLES, **options)
    grads, found = total(policy, batches, plan)
    assert relative_difference(grads, want) < SAME
    assert found == pytest.approx(value, rel=SAME)
    assert sum(int(batch.length.sum()) for batch in batches) == LENGTH


def test_comparison_sees_documents_that_see_each_other(case):
    policy, _, want = case
    options, plan = LAYOUTS["packed, other rows, remat"]
    batches = lay_out(EXAMPLES, **options)
    grads, _ = total(policy, [batch._replace(starts=None) for batch in batches], plan)
    assert relative_difference(grads, want) > 1e-2


def test_packing_fills_rows():
    examples = documents(130, 90, 61, 33, 120, 2, 70)
    (packed,) = lay_out(examples, rows=2, row_tokens=256)
    # First fit, the longest first: 130 + 120 + 2, and 90 + 70 + 61 + 33.
    assert packed.length.tolist() == [254, 252]
    assert tokens_run(packed, plan_arguments(packed, Plan())[0]) == (506, 512)
    assert [packed.starts[1, i] for i in (0, 129, 130, 250, 252, 255)] == [0, 0, 130, 250, 252, 252]
    numbers = row_numbers(packed)
    assert [numbers[0, 0], numbers[0, 89], numbers[0, 90]] == [0, 0, 1]
    assert (numbers[1, 0], numbers.max()) == (4, 6)
    apart = lay_out(examples, rows=4, row_tokens=256, packing=False)
    assert [batch.length.tolist() for batch in apart] == [[130, 120, 90, 70], [61, 33, 2, 0]]
    assert apart[0].starts is None
    assert [batch.tokens.shape for batch in lay_out(examples, rows=4, row_tokens=256)] == [(2, 256)]


def test_documents_of_an_example_stay_together():
    six = documents(130, 90, 61, 33, 120, 2)
    pairs = [(*a, *b) for a, b in zip(six[::2], six[1::2], strict=True)]
    (packed,) = lay_out(pairs, rows=2, row_tokens=256)
    assert packed.length.tolist() == [130 + 90, 120 + 2 + 61 + 33]
    assert packed.starts[1, [0, 119, 120, 122, 182]].tolist() == [0, 0, 120, 122, 122]
    (apart,) = lay_out(pairs, rows=6, row_tokens=256, packing=False)
    assert apart.length.tolist() == [130, 90, 120, 2, 61, 33]
    with pytest.raises(ValueError, match="rows: expected a multiple of the 2 documents"):
        lay_out(pairs, rows=3, row_tokens=256, packing=False)


def test_what_does_not_fit_is_refused():
    with pytest.raises(
        ValueError, match=r"gradients\.row_tokens: example 0 has 150 tokens, and a row 128"
    ):
        lay_out(EXAMPLES, rows=2, row_tokens=128)


def test_a_documents_first_token_is_not_trained():
    (batch,) = lay_out(EXAMPLES, rows=2, row_tokens=256)
    batch.mask[0, 150] = 1
    with pytest.raises(
        ValueError, match=r"batch\.mask: rows \[0\] train the first token of a document"
    ):
        plan_arguments(batch, Plan())


@pytest.mark.parametrize("plan", [Plan("segments"), Plan(attention="cudnn")])
def test_plans_that_would_mix_documents_are_refused(plan):
    (batch,) = lay_out(EXAMPLES, rows=2, row_tokens=256)
    with pytest.raises(ValueError, match=r"batch\.starts: documents that share a row need"):
        gradients(tiny_policy(), batch, CrossEntropy(), plan)
