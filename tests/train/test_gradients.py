"""Both plans against growing re-forward, and proof that the comparison sees the faults that leave a loss unchanged."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mintjax.extension
import mintjax.train.segment_scan
from mintjax.adapters import LoraConfig
from mintjax.train.custom_loss import custom_gradients
from mintjax.train.gradients import gradients
from mintjax.train.losses import CrossEntropy, ImportanceSampling, LossInputs, Ppo
from mintjax.train.plan import Plan
from mintjax.train.plan_arguments import plan_arguments, tokens_run
from mintjax.train.segment_scan import segment_logprobs
from mintjax.train.segments import Segments, count
from tests.naive import naive_logprobs
from tests.tiny import CONFIG, random_batch, relative_difference, tiny_policy

CUSTOM_TOLERANCE = 1e-6  # the same numbers, summed by another program
TOLERANCE = {np.float32: 1e-5, np.float64: 1e-12}  # of ‖g₁ - g₂‖ / ‖g₂‖, the worst leaf

# Uneven rows, one of them empty. 290 tokens in segments of 100 make a capacity of 300, which no block of 64 divides and
# which is read in a loop over blocks; that of 70 tokens is read in one block.
LONG, SEGMENT = [290, 0, 141], 100
SHORT, SIZE = [70, 0, 41], 70
TURN_ENDS = {290: (90, 180, 290), 70: (20, 45, 70)}

PLANS = {
    "packed": Plan("packed"),
    "packed, remat": Plan("packed", remat=True),
    "segments": Plan("segments", segment=SEGMENT),
    "segments, remat": Plan("segments", segment=SEGMENT, remat=True),
}


def growing_reforward(policy, batch, loss):
    """Gradient as a chat loop without a cache would compute it: every turn is a pass over all tokens so far."""

    def total(adapter):
        value = jnp.zeros((), batch.advantages.dtype)
        for row, length in enumerate(batch.length):
            start = 1
            for end in (min(end, length) for end in TURN_ENDS[batch.tokens.shape[1]]):
                if end <= start:
                    continue
                logprobs = naive_logprobs(
                    policy.replace(adapter=adapter),
                    batch.tokens[row, :end],
                    float(batch.temperature),
                    xp=jnp,
                )[start - 1 :]
                inputs = LossInputs(
                    *(
                        x[row, start:end]
                        for x in (batch.mask, batch.weights, batch.advantages, batch.logprobs)
                    )
                )
                value += jnp.sum(inputs.mask * loss(logprobs, inputs))
                start = end
        return value

    return jax.jit(jax.grad(total))(policy.adapter)


# A frozen head's part of the gradient is made in the forward pass; that of an adapted one cannot be.
FROZEN_HEAD = LoraConfig(rank=3, alpha=6.0)


@pytest.fixture(
    scope="module",
    params=[(np.float32, None), (np.float64, None), (np.float64, FROZEN_HEAD)],
    ids=["f32", "f64", "f64, frozen head"],
)
def case(request):
    dtype, lora = request.param
    with jax.enable_x64(dtype == np.float64):
        policy = tiny_policy(dtype, lora=lora)
        batch = random_batch(LONG, LONG[0], dtype=dtype)
        yield dtype, policy, batch, growing_reforward(policy, batch, ImportanceSampling())


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS.keys())
def test_plans_equal_growing_reforward(case, plan):
    dtype, policy, batch, reference = case
    grads, _ = gradients(policy, batch, ImportanceSampling(), plan)
    assert relative_difference(grads, reference) < TOLERANCE[dtype]


def test_logprobs_are_those_of_the_trained_tokens(case):
    dtype, policy, batch, _ = case
    for plan in (Plan("packed"), Plan("segments", segment=SEGMENT)):
        _, metrics = gradients(policy, batch, ImportanceSampling(), plan)
        assert (np.isfinite(metrics.logprobs) == (batch.mask > 0)).all()
        trained = np.flatnonzero(batch.mask[0])
        want = naive_logprobs(policy, batch.tokens[0], float(batch.temperature))[trained - 1]
        np.testing.assert_allclose(
            metrics.logprobs[0, trained], want, rtol=0, atol=TOLERANCE[dtype]
        )


# --------------------------------------------------------------------------------------------------------------------
# Segments cut at turns: rows of unequal length in every segment, so that padding stands in the middle of the cache.


def turn_segments(batch):
    """The batch cut at the ends of turns, every token but a row's first scored, and where each came from."""
    ends = TURN_ENDS[SIZE]
    starts, size = (0, *ends[:-1]), 32
    tokens = np.zeros((len(ends), len(batch.length), size), np.int32)
    length = np.zeros(tokens.shape[:2], np.int32)
    scored = [[] for _ in ends]  # place, label and origin of what each segment predicts
    for t, (start, end) in enumerate(zip(starts, ends, strict=True)):
        for row, total in enumerate(batch.length):
            # Rows take turns of their own lengths: shift each row's edges.
            first, last = (
                min(max(edge - 3 * row, 0) if edge < SIZE else SIZE, total) for edge in (start, end)
            )
            length[t, row] = last - first
            tokens[t, row, : last - first] = batch.tokens[row, first:last]
            scored[t] += [
                (row * size + i, batch.tokens[row, first + i + 1], row * SIZE + first + i + 1)
                for i in range(last - first)
                if first + i + 1 < total
            ]
    count = max(map(len, scored))
    padded = np.array([here + [(0, 0, -1)] * (count - len(here)) for here in scored])
    positions, labels, index = np.moveaxis(padded, 2, 0)
    count = np.array([len(here) for here in scored], np.int32)
    arrays = positions.astype(np.int32), labels.astype(np.int32), count
    return Segments(tokens, length, *arrays), index


def turn_gradient(policy, batch):
    segments, index = turn_segments(batch)
    coefficient = jnp.where(index >= 0, (batch.advantages * batch.mask).reshape(-1)[index], 0)

    def total(adapter):
        (scored,) = segment_logprobs(adapter, policy, (segments,), batch.temperature, False)
        return -jnp.sum(coefficient * jnp.where(coefficient != 0, scored, 0))

    return jax.jit(jax.value_and_grad(total))(policy.adapter)


@pytest.fixture(scope="module")
def turn_case():
    policy, batch = tiny_policy(), random_batch(SHORT, SIZE)

    def total(adapter):
        rows = zip(batch.tokens, batch.length, batch.advantages * batch.mask, strict=True)
        score = partial(
            naive_logprobs,
            policy.replace(adapter=adapter),
            temperature=float(batch.temperature),
            xp=jnp,
        )
        return -sum(jnp.sum(a[1:n] * score(tokens[:n])) for tokens, n, a in rows if n)

    return policy, batch, *jax.jit(jax.value_and_grad(total))(policy.adapter)


@pytest.mark.parametrize("joined", [1, 2, 3])
def test_turns_of_uneven_length_equal_one_pass(monkeypatch, turn_case, joined):
    policy, batch, value, reference = turn_case
    monkeypatch.setattr(mintjax.train.segment_scan, "joined_segments", lambda *_: joined)
    got, grads = turn_gradient(policy, batch)
    assert relative_difference(grads, reference) < TOLERANCE[np.float32]
    assert abs(got - value) < TOLERANCE[np.float32] * abs(value)


@pytest.mark.parametrize(("rows", "tokens"), [(1, 256), (2, 128), (8, 64)])
def test_a_forward_pass_over_few_rows_runs_several_segments_at_once(monkeypatch, rows, tokens):
    policy, steps, size = tiny_policy(), 1024, 64
    run, widths = mintjax.train.segment_scan.run_segment, []

    def recorded(policy, segment, *rest, **options):
        widths.append(segment.tokens.shape[1])
        return run(policy, segment, *rest, **options)

    monkeypatch.setattr(mintjax.train.segment_scan, "run_segment", recorded)
    places = np.zeros((steps, rows * size), np.int32)
    lengths = np.full((steps, rows), size, np.int32)
    ids = np.zeros((steps, rows, size), np.int32)
    segments = Segments(ids, lengths, places, places, lengths.sum(1, dtype=np.int32))
    jax.eval_shape(
        lambda adapter: segment_logprobs(adapter, policy, (segments,), 1.0, False), policy.adapter
    )
    assert set(widths) == {tokens}


def unmasked_read(buffer, slots):
    """Reads back whatever stands behind a row's last real slot, as a slice of fixed size would."""
    first = slots[:, :1] + jnp.arange(slots.shape[1])
    rows = jnp.arange(buffer.shape[0])[:, None]
    return buffer.at[rows, :, first].get(mode="fill", fill_value=0).transpose(0, 2, 1, 3)


def cut_read(buffer, slots):
    """What flows back from later segments is dropped, as a stop_gradient on the cache would."""
    return jnp.zeros((*buffer.shape[:2], slots.shape[1], buffer.shape[3]), buffer.dtype)


def clamping_write(buffer, new, slots):
    """Writes a slice of fixed size, which slides back where it does not fit."""
    place = jax.vmap(lambda b, x, slot: jax.lax.dynamic_update_slice_in_dim(b, x, slot, 1))
    return place(buffer, new, slots[:, 0])


@pytest.mark.parametrize(
    "fault",
    [cut_read, unmasked_read],
    ids=["gradient through the cache is cut", "padding receives what flows to the cache"],
)
def test_comparison_sees_faults_that_leave_the_loss_unchanged(monkeypatch, turn_case, fault):
    policy, batch, value, reference = turn_case
    monkeypatch.setattr(mintjax.train.segment_scan, "read", fault)
    got, grads = turn_gradient(policy, batch)
    assert abs(got - value) < TOLERANCE[np.float32] * abs(value), (
        "the loss does not show this fault"
    )
    assert relative_difference(grads, reference) > 1e-2


def test_comparison_sees_a_write_that_clamps(monkeypatch):
    # Two segments of 48 tokens in a cache of 64: the second one's padding has no room.
    policy, batch = tiny_policy(), random_batch([64, 64], 64)
    init_state = mintjax.train.segment_scan.init_state
    monkeypatch.setattr(
        mintjax.train.segment_scan,
        "init_state",
        lambda policy, rows, _: init_state(policy, rows, 64),
    )
    monkeypatch.setattr(mintjax.train.segment_scan, "joined_segments", lambda *_: 1)
    reference = gradients(policy, batch, ImportanceSampling())[0]

    def difference():
        mintjax.train.gradients._gradients.clear_cache()
        grads, _ = gradients(policy, batch, ImportanceSampling(), Plan("segments", segment=48))
        mintjax.train.gradients._gradients.clear_cache()
        return relative_difference(grads, reference)

    assert difference() < TOLERANCE[np.float32]
    monkeypatch.setattr(mintjax.extension, "write", clamping_write)
    assert difference() > 1e-2


def test_gradients_of_parts_add_up():
    policy, batch = tiny_policy(), random_batch(SHORT, SIZE)
    whole, metrics = gradients(policy, batch, Ppo())
    parts = [
        gradients(policy, jax.tree.map(lambda x, rows=rows: x[rows] if x.ndim else x, batch), Ppo())
        for rows in ([0, 1], [2, 1])
    ]
    total = jax.tree.map(jnp.add, parts[0][0], parts[1][0])
    assert relative_difference(total, whole) < TOLERANCE[np.float32]
    assert abs(parts[0][1].loss + parts[1][1].loss - metrics.loss) < TOLERANCE[np.float32] * abs(
        metrics.loss
    )


def several_labels(batch, k=3):
    """The batch with K labels of their own at each place, and the sum that it stands for: K batches of one label."""
    rng = np.random.default_rng(2)
    labels = rng.integers(0, CONFIG.vocab_size, (*batch.tokens.shape, k)).astype(np.int32)
    weights = (rng.random(labels.shape) * batch.mask[..., None]).astype(np.float32)
    repeated = {name: np.repeat(getattr(batch, name)[..., None], k, 2) for name in BESIDE}
    return batch._replace(**repeated | {"labels": labels, "weights": weights})


BESIDE = ("mask", "advantages", "logprobs")


@pytest.mark.parametrize(
    ("plan", "lora", "k"),
    [
        (Plan(), None, 3),
        (Plan("segments", segment=24), None, 3),
        (Plan("segments", segment=24), FROZEN_HEAD, 1),
    ],
    ids=["packed", "segments", "a list of one, frozen head"],
)
def test_labels_may_be_any_ids_and_several(plan, lora, k):
    policy, batch = tiny_policy(lora=lora), several_labels(random_batch(SHORT, SIZE), k)
    batch = batch._replace(scored=(batch.tokens > 30).astype(np.float32) * (np.arange(SIZE) > 0))
    grads, metrics = gradients(policy, batch, CrossEntropy(), plan)

    def total(adapter):
        value = 0.0
        for row, length in enumerate(batch.length):
            if length:
                logits = policy.replace(adapter=adapter).logits(
                    batch.tokens[row : row + 1, :length]
                )
                scores = jax.nn.log_softmax(logits[0, :-1] / batch.temperature)
                labels = batch.labels[row, 1:length]
                value -= jnp.sum(
                    batch.weights[row, 1:length] * jnp.take_along_axis(scores, labels, 1)
                )
        return value

    value, reference = jax.value_and_grad(total)(policy.adapter)
    assert relative_difference(grads, reference) < TOLERANCE[np.float32]
    assert abs(metrics.loss - value) < TOLERANCE[np.float32] * abs(value)
    scored = (batch.mask[..., 0] > 0) | (batch.scored > 0)
    assert (np.isfinite(metrics.logprobs) == scored[..., None]).all()
    assert metrics.logprobs.shape == batch.labels.shape


@pytest.mark.parametrize("plan", [Plan(), Plan("segments", segment=24)], ids=["packed", "segments"])
def test_a_custom_loss_has_the_gradient_of_the_built_in_one(plan):
    policy, batch = tiny_policy(), random_batch(SHORT, SIZE)

    def loss(scores):
        terms = jnp.exp(scores[0] - batch.logprobs) * batch.advantages
        return -jnp.sum(jnp.where(batch.mask > 0, terms, 0)), "anything"

    found = custom_gradients(policy, [batch], loss, plan)
    want, metrics = gradients(policy, batch, ImportanceSampling(), plan)
    assert relative_difference(found.grads, want) < CUSTOM_TOLERANCE
    assert float(found.loss) == pytest.approx(float(metrics.loss), rel=CUSTOM_TOLERANCE)
    assert found.aux == "anything"
    np.testing.assert_allclose(
        found.logprobs[0], metrics.logprobs, rtol=0, atol=TOLERANCE[np.float32]
    )


@pytest.mark.parametrize(("lengths", "size"), [([290, 0, 141], 300), ([70, 0, 41], 80)])
def test_the_tokens_that_are_run_are_counted(lengths, size):
    batch = random_batch(lengths, size)
    rows = plan_arguments(batch, Plan())[0]
    assert tokens_run(batch, rows) == (sum(lengths), rows.tokens.size)
    for kind in ("segments", "reverse_only"):
        levels = plan_arguments(batch, Plan(kind, segment=24))[0]
        run = levels[0].tokens[: int(count(levels[0].length))].size
        assert tokens_run(batch, levels) == (sum(lengths), run)


def test_what_rows_share_is_run_and_counted_once():
    batch = random_batch([70, 70, 0, 41], 80)
    batch.tokens[1:, :40] = batch.tokens[0, :40]
    shared = tokens_run(batch, plan_arguments(batch, Plan("segments", segment=8))[0])
    apart = tokens_run(batch, plan_arguments(batch, Plan("segments", segment=8, share=False))[0])
    assert apart.real == 70 + 70 + 41 and shared.real == 40 + 30 + 30 + 1
    assert shared.padded < apart.padded


def test_training_a_first_token_is_refused():
    batch = random_batch([5, 5], 8)
    batch.mask[1, 0] = 1
    with pytest.raises(ValueError, match=r"batch\.mask: rows \[1\] train their first token"):
        gradients(tiny_policy(), batch, Ppo())
