"""Every plan with every kernel: the same gradient; and a name means what the hardware can do, or is refused."""

from dataclasses import replace
from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

import mintjax.train.gradients
import mintjax.train.plan
from mintjax.attention_kernels import Hardware, attend_cudnn, attend_splash
from mintjax.cache import init_state
from mintjax.extension import extend
from mintjax.train.custom_loss import custom_gradients
from mintjax.train.gradients import evaluate, gradients
from mintjax.train.loop import train
from mintjax.train.losses import ImportanceSampling, Ppo
from mintjax.train.plan import Plan, with_kernel
from mintjax.types import Segment
from tests.tiny import CONFIG, random_batch, relative_difference, tiny_policy
from tests.train.tiny_run import tiny_config, tiny_parts

TOLERANCE = 1e-5  # of ‖g₁ - g₂‖ / ‖g₂‖, the worst leaf
LENGTHS, SIZE, SEGMENT = [70, 0, 41], 70, 23

PLANS = {
    "packed": Plan("packed", remat=True),
    "segments": Plan("segments", SEGMENT),
    "reverse_only": Plan("reverse_only", SEGMENT),
}


def state_of(policy, batch):
    """The cache that the plan "reverse_only" walks."""
    return extend(
        policy, Segment(batch.tokens, batch.length), init_state(policy, len(batch.length), SIZE)
    )


@pytest.fixture(scope="module")
def case():
    policy = tiny_policy(config=replace(CONFIG, num_layers=1))
    batch = random_batch(LENGTHS, SIZE)
    return policy, batch, gradients(policy, batch, ImportanceSampling())[0]


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_a_kernel_gives_the_gradient_of_the_plain_one(monkeypatch, case, plan):
    # cuDNN is not here: jax's plain implementation behind the same wrapper stands in for it.
    policy, batch, reference = case
    monkeypatch.setattr(mintjax.train.gradients, "with_kernel", lambda plan, policy, **_: plan)
    calls = []

    def stand_in(*args):
        calls.append(args[3:])
        return attend_cudnn(*args, implementation="xla")

    monkeypatch.setattr("mintjax.attention_kernels.attend_cudnn", stand_in)
    state = state_of(policy, batch) if plan.kind == "reverse_only" else None
    grads, _ = gradients(
        policy, batch, ImportanceSampling(), replace(plan, attention="cudnn"), state
    )
    assert relative_difference(grads, reference) < TOLERANCE
    assert calls and all(bool(before) == (plan.kind != "packed") for before in calls)


def test_splash_goes_through_the_segment_scan(monkeypatch, case):
    policy, batch, reference = case
    monkeypatch.setattr(mintjax.train.gradients, "with_kernel", lambda plan, policy, **_: plan)
    monkeypatch.setattr(
        "mintjax.attention_kernels.attend_splash", partial(attend_splash, interpret=True)
    )
    grads, _ = gradients(
        policy, batch, ImportanceSampling(), Plan("segments", 40, attention="splash")
    )
    assert relative_difference(grads, reference) < TOLERANCE


def test_auto_is_the_platforms_kernel_for_whole_rows_alone(monkeypatch):
    policy = tiny_policy(jnp.bfloat16)
    assert with_kernel(Plan(), policy).attention == "blockwise"
    hopper = Hardware("cuda", (9, 0))
    monkeypatch.setattr(mintjax.train.plan, "hardware_of", lambda _: hopper)
    assert with_kernel(Plan(), policy).attention == "cudnn"
    assert with_kernel(Plan("segments"), policy).attention == "blockwise"
    assert with_kernel(Plan("segments", attention="cudnn"), policy).attention == "cudnn"
    assert with_kernel(Plan(), tiny_policy()).attention == "blockwise"  # float32
    assert with_kernel(Plan(remat=True), policy) == Plan(remat=True, attention="cudnn")
    windowed = policy.replace(config=replace(CONFIG, windows=(None, 8)))
    assert with_kernel(Plan(), windowed).attention == "blockwise"


def test_a_run_with_a_kernel_that_is_not_there_is_refused_before_it_starts(tmp_path):
    gradient_config = {"rows": 6, "attention": "splash"}
    with pytest.raises(ValueError, match="attention: 'splash' needs a TPU"):
        train(tiny_config(str(tmp_path), "run", gradients=gradient_config), *tiny_parts())
    assert not list(tmp_path.iterdir())


def test_a_kernel_that_is_not_there_is_refused(case):
    policy, batch, _ = case
    plan = Plan(attention="cudnn")
    for run in (
        lambda: gradients(policy, batch, Ppo(), plan),
        lambda: evaluate(policy, batch, Ppo(), plan),
        lambda: custom_gradients(policy, [batch], lambda scores: (np.sum(0.0), None), plan),
    ):
        with pytest.raises(ValueError, match="attention: 'cudnn' needs an NVIDIA GPU"):
            run()
