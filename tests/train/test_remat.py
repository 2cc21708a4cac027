"""Rematerialisation must save memory: XLA merges what it is not kept from merging, and then nothing is saved."""

from dataclasses import replace

import numpy as np
import pytest

from mintjax.train.gradients import Plan, _gradients, _packed_arguments
from mintjax.train.losses import LossInputs, Ppo
from tests.tiny import CONFIG, random_batch, tiny_policy


def temp_bytes_per_token(plan):
    config = replace(CONFIG, num_layers=6, intermediate_size=128)
    policy, batch = tiny_policy(config=config), random_batch([256], 256)
    rows, index = _packed_arguments(batch, np.flatnonzero(batch.mask))
    zeros = np.zeros(index.shape, np.float32)
    inputs = LossInputs(zeros, zeros, zeros, zeros)
    lowered = _gradients.lower(policy, rows, inputs, batch.temperature, loss=Ppo(), plan=plan)
    return lowered.compile().memory_analysis().temp_size_in_bytes / 256


def test_remat_lowers_memory_a_token():
    kept, recomputed = temp_bytes_per_token(Plan()), temp_bytes_per_token(Plan(remat=True))
    if kept == recomputed == 0:
        pytest.fail("the backend reports no temporary memory, so this test would compare nothing")
    assert recomputed < 0.5 * kept
