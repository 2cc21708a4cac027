"""DPO's loss and gradient against the formula written down in float64, whatever the layout."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mintjax.train.config_dataset import DpoConfig
from mintjax.train.dpo import Dpo, DpoObjective
from mintjax.train.gradients import add_gradients, gradients
from mintjax.train.losses import LossInputs
from mintjax.train.packing import Document, lay_out
from mintjax.train.plan import Plan
from mintjax.train.reference import reference_logprobs
from tests.naive import naive_logprobs
from tests.tiny import CONFIG, relative_difference, tiny_policy

SAME = 1e-6  # relative, of float64 gradients in another layout: the batches' weights are float32
SLOPE_TOLERANCE = 1e-6  # relative, of a central difference in float64
STEP = 1e-5
OBJECTIVE = DpoObjective(DpoConfig(name="x", data="x", beta=0.3))
LAYOUTS = {
    "packed": ({"rows": 2, "row_tokens": 96}, Plan()),
    "apart, segments": (
        {"rows": 2, "row_tokens": 64, "packing": False, "size": 64},
        Plan("segments", segment=16),
    ),
}


def pairs():
    rng = np.random.default_rng(0)
    found = []
    for prompt, chosen, rejected in ((9, 8, 20), (12, 15, 4), (5, 30, 31)):
        asked = rng.integers(0, CONFIG.vocab_size, prompt)
        found.append(
            tuple(
                Document(
                    np.concatenate([asked, rng.integers(0, CONFIG.vocab_size, said)]).astype(
                        np.int32
                    ),
                    (np.arange(prompt + said) >= prompt).astype(np.float32),
                )
                for said in (chosen, rejected)
            )
        )
    return OBJECTIVE.weigh(found)


def batches_of(policy, layout):
    options, plan = LAYOUTS[layout]
    base = policy.base_only()
    return [
        x._replace(reference=reference_logprobs(base, x, plan)) for x in lay_out(pairs(), **options)
    ]


def total(policy, layout):
    grads, value, logprobs = None, 0.0, []
    batches = batches_of(policy, layout)
    for batch in batches:
        more, found = gradients(policy, batch, OBJECTIVE.loss, LAYOUTS[layout][1])
        grads = more if grads is None else add_gradients(grads, more)
        value += float(found.loss)
        logprobs.append(found.logprobs)
    return grads, value, OBJECTIVE.metrics(batches, logprobs)


def naive(policy):
    """The mean loss over pairs, and the replies' sums, ``[pair, chosen or rejected, policy or reference]``."""
    sums = np.array(
        [
            [
                [
                    naive_logprobs(p, x.tokens)[x.weights[1:] > 0].sum()
                    for p in (policy, policy.base_only())
                ]
                for x in pair
            ]
            for pair in pairs()
        ]
    )
    gained = sums[..., 0] - sums[..., 1]
    return np.log1p(np.exp(-0.3 * (gained[:, 0] - gained[:, 1]))).mean(), sums


@pytest.fixture(scope="module")
def case():
    with jax.enable_x64(True):
        policy = tiny_policy(np.float64, config=replace(CONFIG, num_layers=1))
        yield policy, *total(policy, "packed")


def test_gradient_is_the_slope_of_the_formula(case):
    policy, grads, value, metrics = case
    norm = float(jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(grads))))

    def moved(size):
        adapter = jax.tree.map(lambda x, g: x + size * g / norm, policy.adapter, grads)
        return naive(policy.replace(adapter=adapter))[0]

    want, sums = naive(policy)
    assert value == pytest.approx(want, rel=SAME)
    slope = (moved(STEP) - moved(-STEP)) / (2 * STEP)
    assert slope == pytest.approx(norm, rel=SLOPE_TOLERANCE)
    rewards = 0.3 * (sums[..., 0] - sums[..., 1])
    assert metrics["rewards/chosen"] == pytest.approx(rewards[:, 0].mean(), rel=1e-5)
    assert metrics["rewards/rejected"] == pytest.approx(rewards[:, 1].mean(), rel=1e-5)
    assert metrics["rewards/margins"] == pytest.approx(
        (rewards[:, 0] - rewards[:, 1]).mean(), rel=1e-5
    )
    assert metrics["rewards/accuracies"] == (rewards[:, 0] > rewards[:, 1]).mean()
    assert metrics["logps/chosen"] == pytest.approx(sums[:, 0, 0].mean(), rel=1e-5)
    assert metrics["logps/rejected"] == pytest.approx(sums[:, 1, 0].mean(), rel=1e-5)


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(name, marks=[pytest.mark.wide] * (name == "apart, segments"))
        for name in LAYOUTS
        if name != "packed"
    ],
)
def test_the_layout_changes_nothing(case, layout):
    policy, want, value, metrics = case
    grads, found, figures = total(policy, layout)
    assert relative_difference(grads, want) < SAME
    assert found == pytest.approx(value, rel=SAME)
    assert figures == pytest.approx(metrics, rel=1e-5)


def test_it_needs_a_reference_and_whole_rows():
    one = jnp.ones(2)
    with pytest.raises(ValueError, match="inputs: DPO needs the batch's reference, and whole rows"):
        Dpo()(one, LossInputs(one, one, one, one, reference=one))
