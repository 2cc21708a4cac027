"""The training client against the core it stands on."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mintjax.train.batches import Batch
from mintjax.train.gradients import gradients
from mintjax.train.losses import Cispo, CrossEntropy, Dro, ImportanceSampling, Ppo
from mintjax.train.optimizer import _step, init_train_state, make_optimizer, update
from mintjax.types import AdamParams, Datum, ModelInput, SamplingParams
from tests.client.conftest import LENGTHS
from tests.tiny import relative_difference

TOLERANCE = (
    1e-6  # relative, of float32 sums in two orders, and of settings as constants or arguments
)
SUM = 1e-5  # absolute, of a sum of dozens of terms of about 1 whose signs differ
LOSSES = {
    "cross_entropy": (CrossEntropy(), {}),
    "importance_sampling": (ImportanceSampling(), {"temperature": 0.7}),
    "ppo": (Ppo(0.9, 1.1), {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}),
    "cispo": (Cispo(), {}),
    "dro": (Dro(0.1), {"beta": 0.1, "temperature": 1.0}),
}


def policy_of(client):
    return client.result()._trainee.train_state.policy


def grads_of(client):
    client._session.worker.submit(lambda: None).result()
    return client._trainee.grads


def streams(data, name, temperature):
    """The data as the core takes them, in rows of their own making."""
    size = 32
    batch = Batch(
        *(np.zeros((len(data), size), np.int32), np.zeros(len(data), np.int32)),
        *(np.zeros((len(data), size), np.float32) for _ in range(4)),
        temperature=np.float32(temperature),
    )
    for row, datum in enumerate(data):
        n = datum.model_input.length
        batch.length[row] = n + 1
        batch.tokens[row, 0] = datum.model_input.to_ints()[0]
        batch.tokens[row, 1 : n + 1] = datum.loss_fn_inputs["target_tokens"].to_numpy()
        batch.mask[row, 1 + n // 3 : n + 1] = 1
        for key in {"weights", "advantages", "logprobs"} & set(datum.loss_fn_inputs):
            getattr(batch, key)[row, 1 : n + 1] = datum.loss_fn_inputs[key].to_numpy()
    return batch


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_and_a_step_equal_the_cores(trainer, make_data, name):
    loss, config = LOSSES[name]
    data = make_data(loss=name)
    before = policy_of(trainer)
    response = trainer.forward_backward(data, name, config)
    step = trainer.optim_step(
        AdamParams(learning_rate=1e-3, eps=1e-8, weight_decay=0.01, grad_clip_norm=0.5)
    )

    batch = streams(data, name, config.get("temperature", 1.0))
    grads, metrics = gradients(before, batch, loss)
    optimizer = make_optimizer(1e-3, weight_decay=0.01, clip_norm=0.5)
    after = update(init_train_state(before, optimizer), grads).policy

    got, stepped = response.result(), step.result()
    assert got.metrics["loss:sum"] == pytest.approx(float(metrics.loss), rel=TOLERANCE, abs=SUM)
    for row, (datum, outputs) in enumerate(zip(data, got.loss_fn_outputs, strict=True)):
        n = datum.model_input.length
        scored = slice(n // 3, n)
        np.testing.assert_allclose(
            outputs["logprobs"].to_numpy()[scored],
            metrics.logprobs[row, 1:][scored],
            rtol=0,
            atol=1e-5,
        )
        assert np.isfinite(outputs["logprobs"].to_numpy()).all()
    moved = jax.tree.map(jnp.subtract, policy_of(trainer).adapter, before.adapter)
    expected = jax.tree.map(jnp.subtract, after.adapter, before.adapter)
    assert relative_difference(moved, expected) < 100 * TOLERANCE  # of a difference of two weights
    norm = np.sqrt(sum(float(jnp.sum(g**2)) for g in jax.tree.leaves(grads)))
    assert stepped.metrics == {"grad_norm": pytest.approx(norm, rel=1e-5), "step": 1.0}


def test_forward_equals_forward_backward_and_adds_nothing(trainer, make_data):
    data = make_data()
    forward = trainer.forward(data, "ppo").result()
    assert grads_of(trainer) is None
    both = trainer.forward_backward(data, "ppo").result()
    assert forward.metrics == pytest.approx(both.metrics, rel=TOLERANCE, abs=SUM)
    for a, b in zip(forward.loss_fn_outputs, both.loss_fn_outputs, strict=True):
        np.testing.assert_allclose(a["logprobs"].to_numpy(), b["logprobs"].to_numpy(), atol=1e-5)


def test_gradients_accumulate_until_the_step(trainer, make_data):
    data = make_data(LENGTHS * 2)  # two micro-batches
    trainer.forward_backward(data, "ppo")
    whole = jax.tree.map(jnp.copy, grads_of(trainer))
    trainer._trainee.grads = None
    trainer.forward_backward(data[4:], "ppo")
    trainer.forward_backward(data[:4], "ppo")
    assert relative_difference(grads_of(trainer), whole) < 10 * TOLERANCE
    trainer.optim_step(AdamParams()).result()
    assert trainer._trainee.grads is None


def ppo(data, logprobs):
    terms = []
    for datum, lp in zip(data, logprobs, strict=True):
        q, a = (
            jnp.asarray(datum.loss_fn_inputs[key].to_numpy()) for key in ("logprobs", "advantages")
        )
        ratio = jnp.exp(lp - q)
        terms.append(-jnp.minimum(ratio * a, jnp.clip(ratio, 0.8, 1.2) * a).sum())
    return sum(terms), {"count": len(terms)}


def test_a_custom_loss_equals_the_built_in_one(trainer, make_data):
    data = make_data(LENGTHS * 2)  # two micro-batches
    built_in = trainer.forward_backward(data, "ppo").result()
    want = jax.tree.map(jnp.copy, grads_of(trainer))
    trainer._trainee.grads = None
    custom = trainer.forward_backward_custom(data, ppo).result()
    assert relative_difference(grads_of(trainer), want) < TOLERANCE
    assert custom.metrics["loss:sum"] == pytest.approx(
        built_in.metrics["loss:sum"], rel=TOLERANCE, abs=SUM
    )
    assert custom.metrics["count"] == 8
    assert [len(x["logprobs"]) for x in custom.loss_fn_outputs] == LENGTHS * 2


def test_targets_may_be_any_ids_and_several(trainer, make_data):
    data = make_data(loss="cross_entropy", choices=(3,))
    got = trainer.forward_backward(data, "cross_entropy").result()
    policy, value = policy_of(trainer), 0.0
    for datum, outputs in zip(data, got.loss_fn_outputs, strict=True):
        logits = policy.logits(np.array([datum.model_input.to_ints()]))[0]
        targets = datum.loss_fn_inputs["target_tokens"].to_numpy()
        want = np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), targets, 1)
        np.testing.assert_allclose(outputs["logprobs"].to_numpy(), want, rtol=0, atol=1e-5)
        value -= float((want * datum.loss_fn_inputs["weights"].to_numpy()).sum())
    assert got.metrics["loss:sum"] == pytest.approx(value, rel=1e-5)


def test_dro_leaves_out_what_was_never_sampled(trainer, make_data):
    data = make_data()
    with_prompt = trainer.forward(data, "dro").result().metrics["loss:sum"]
    said = [
        type(datum)(
            datum.model_input,
            {**datum.loss_fn_inputs, "weights": np.float32(np.arange(n) >= n // 3)},
        )
        for datum, n in zip(data, LENGTHS, strict=True)
    ]
    assert trainer.forward(said, "dro").result().metrics["loss:sum"] == with_prompt


def test_a_changing_learning_rate_compiles_nothing(trainer, make_data):
    data = make_data()
    trainer.forward_backward(data, "ppo")
    trainer.optim_step(AdamParams(learning_rate=1e-3)).result()
    compiled = _step._cache_size()
    for rate, clip in ((1e-4, 0.0), (2e-4, 1.0)):
        trainer.forward_backward(data, "ppo")
        trainer.optim_step(
            AdamParams(rate, beta1=0.8, eps=1e-6, weight_decay=0.1, grad_clip_norm=clip)
        ).result()
    assert _step._cache_size() == compiled


def test_weight_decay_touches_only_the_adapter_that_is_stepped(service, trainer, make_data):
    other = service.create_lora_training_client("tiny", rank=3)

    def frozen():
        return jax.tree.leaves((policy_of(other).adapter, policy_of(trainer).base))

    before = [np.array(x) for x in frozen()]
    trainer.forward_backward(make_data(), "ppo")
    trainer.optim_step(AdamParams(learning_rate=0.1, weight_decay=1.0)).result()
    assert all((a == b).all() for a, b in zip(before, frozen(), strict=True))
    memory = {policy_of(c).base["embed"].unsafe_buffer_pointer() for c in (trainer, other)}
    assert len(memory) == 1  # the base weights are there once


def test_a_missing_temperature_is_warned_of_once(service, trainer, make_data):
    data = make_data()
    trainer.forward_backward(data, "ppo").result()  # nothing was sampled yet
    sampler = trainer.save_weights_and_get_sampling_client()
    prompt = ModelInput.from_ints([1, 2])
    sampler.sample(prompt, 1, SamplingParams(max_tokens=2)).result()
    trainer.forward_backward(data, "ppo").result()
    sampler.sample(prompt, 1, SamplingParams(max_tokens=2, temperature=0.8)).result()
    trainer.forward_backward(data, "ppo", {"temperature": 0.8}).result()
    trainer.forward(make_data(loss="cross_entropy"), "cross_entropy").result()
    with pytest.warns(UserWarning, match=r"'temperature': 0\.8"):
        trainer.forward_backward(data, "ppo")
    trainer.forward_backward(data, "ppo").result()


def test_a_sample_of_any_temperature_has_a_ratio_of_one(trainer):
    sampler = trainer.save_weights_and_get_sampling_client()
    prompt = [5, 6, 7]
    params = SamplingParams(max_tokens=12, temperature=0.6, stop=[])
    (sequence,) = sampler.sample(ModelInput.from_ints(prompt), 1, params).result().sequences
    ids = prompt + sequence.tokens
    zeros = [0.0] * (len(prompt) - 1)
    datum = Datum(
        ModelInput.from_ints(ids[:-1]),
        {
            "target_tokens": ids[1:],
            "logprobs": [*zeros, *sequence.logprobs],
            "advantages": [*zeros, *[1.0] * 12],
        },
    )
    config = {"temperature": 0.6}
    response = trainer.forward([datum], "importance_sampling", config).result()
    assert response.metrics["loss:sum"] == pytest.approx(-12, rel=1e-5)


def test_info_and_tokenizer(trainer, models):
    info = trainer.get_info()
    assert (info.model_name, info.lora_rank, info.model_data.tokenizer_id) == ("tiny", 3, "tiny")
    assert info.model_id.endswith(":train:0")
    assert trainer.get_tokenizer() is models["tiny"].tokenizer
