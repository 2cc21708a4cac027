"""The real model: its sampler's log probabilities are its trainer's."""

import jax
import numpy as np
import pytest

import mintjax
from mintjax.renderers import get_renderer
from mintjax.train.advantages import Advantages
from mintjax.train.batches import micro_batches
from mintjax.train.environments import CountDown
from mintjax.train.gradients import gradients
from mintjax.train.losses import ImportanceSampling
from mintjax.train.rollout import RolloutSettings, rollout

# Of two ways to sum products in float32, token by token and row by row, through 30 layers.
MAXIMUM, MEAN = 1e-4, 3e-6
NAME = "smollm2-135m-instruct"


@pytest.mark.wide  # compiling it takes three minutes, and the tiny models are held to a tenth of it
@jax.default_matmul_precision("highest")
def test_sampled_logprobs_are_the_trainers():
    policy, tokenizer = mintjax.load_policy(NAME), mintjax.load_tokenizer(NAME)
    settings = RolloutSettings(group_size=2, max_tokens=16, max_turns=3, capacity=128)
    episodes, *_ = rollout(
        policy, get_renderer("smollm2"), tokenizer, CountDown, [5], settings, seed=0
    )
    assert [len(episode.turns) for episode in episodes] == [3, 3]
    ones = tuple(np.ones(3) for _ in episodes)
    everything = Advantages(ones, tuple(one > 0 for one in ones), {0: True})
    (batch,) = micro_batches(episodes, everything, rows=2)
    _, metrics = gradients(policy, batch, ImportanceSampling())
    difference = np.abs(metrics.logprobs - batch.logprobs)[batch.mask > 0]
    assert difference.size == sum(episode.sampled.sum() for episode in episodes) > 50
    assert difference.max() < MAXIMUM and difference.mean() < MEAN
    print(
        f"sampler against trainer: at most {difference.max():.2e}, {difference.mean():.2e} on average"
    )
