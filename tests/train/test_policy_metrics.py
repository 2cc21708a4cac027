"""What clipping and corrections did, on a few tokens worked by hand."""

import numpy as np
import pytest

from mintjax.train.batches import Batch
from mintjax.train.corrections import Corrected, Masked, Truncated
from mintjax.train.losses import Gspo, ImportanceSampling, Ppo
from mintjax.train.policy_metrics import policy_metrics

TOLERANCE = 1e-6  # of numbers that were float32
# Three rows of two micro-batches; the policy's log probabilities are -1 where a token counts.
RATIOS = [[[2.0, 0.5, 1.0], [1.0, 4.0, 0.0]], [[0.25, 0.5, 1.0]]]
ADVANTAGES = [[[1.0, -1.0, -1.0], [-1.0, -1.0, 0.0]], [[1.0, -1.0, 1.0]]]


def batches():
    for ratios, advantages in zip(RATIOS, ADVANTAGES, strict=True):
        ratio, advantage = np.array(ratios, np.float32), np.array(advantages, np.float32)
        mask = (ratio > 0).astype(np.float32)
        logprobs = np.where(mask > 0, -1 - np.log(np.where(mask > 0, ratio, 1)), 0)
        yield Batch(
            tokens=np.zeros(mask.shape, np.int32),
            length=mask.sum(1).astype(np.int32),
            mask=mask,
            advantages=advantage,
            logprobs=logprobs.astype(np.float32),
            weights=advantage,
            temperature=np.asarray(1, np.float32),
        )


def metrics_of(loss):
    made = list(batches())
    now = [np.where(batch.mask > 0, -1, np.nan).astype(np.float32) for batch in made]
    return policy_metrics(made, now, loss)


def holds(metrics, **expected):
    for name, value in expected.items():
        assert metrics[name.replace("__", "/")] == pytest.approx(value, abs=TOLERANCE), name


def test_a_clip_counts_where_it_stops_a_gradient():
    metrics = metrics_of(Ppo(0.6, 1.5))
    holds(metrics, ratio__mean=(2 + 0.5 + 1 + 1 + 4 + 0.25 + 0.5 + 1) / 8, ratio__max=4)
    # 2 with a positive advantage; 0.5 with a negative one, twice; 4 and 0.25 pull back in.
    holds(metrics, clip_ratio__high_mean=1 / 8, clip_ratio__low_mean=2 / 8)
    holds(metrics, clip_ratio__region_mean=3 / 8)
    holds(metrics_of(Ppo(0.6, 1.5, 3)), clip_ratio__region_mean=4 / 8, clip_ratio__low_mean=2 / 8)
    assert "clip_ratio/low_mean" not in metrics_of(ImportanceSampling())


def test_gspo_counts_by_the_ratio_of_the_row():
    # Geometric means: 1, 2 and a half.
    metrics = metrics_of(Gspo(0.6, 1.5))
    holds(metrics, clip_ratio__high_mean=0, clip_ratio__low_mean=1 / 8)


def test_a_correction_tells_the_weights_and_the_loss_sees_a_ratio_of_1():
    metrics = metrics_of(Corrected(Ppo(0.6, 1.5), Truncated("token", 1.5)))
    holds(metrics, ratio__mean=1, ratio__max=1, clip_ratio__region_mean=0)
    holds(metrics, correction__ratio_mean=10.25 / 8, correction__ratio_max=4)
    holds(metrics, correction__weight_mean=(10.25 - 0.5 - 2.5) / 8, correction__bound_mean=2 / 8)


def test_a_correction_of_rows_tells_their_products():
    metrics = metrics_of(Corrected(ImportanceSampling(), Masked("sequence", 0.5, 3)))
    # Products: 1, 4 and an eighth; the last two are outside.
    holds(metrics, correction__ratio_mean=(3 * 1 + 2 * 4 + 3 / 8) / 8, correction__ratio_max=4)
    holds(metrics, correction__weight_mean=3 / 8, correction__bound_mean=5 / 8)
