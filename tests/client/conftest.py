"""A tiny model that a service client is given, and services with a directory of their own."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from mintjax import ServiceClient
from mintjax.client import BaseModel
from mintjax.train.optimizer import init_adjustable
from mintjax.types import Datum, ModelInput
from tests.tiny import CONFIG, tiny_policy, tiny_tokenizer

TINY = replace(CONFIG, vocab_size=100, num_layers=1)  # one: what is compiled is most of the time
LENGTHS = [9, 20, 14, 11]  # one micro-batch, the same in most tests: it is compiled for once


@pytest.fixture(scope="session")
def models():
    """Two models of one shape; they differ in their weights."""
    tokenizer = tiny_tokenizer()
    return {
        name: BaseModel(tiny_policy(config=TINY, seed=seed), tokenizer)
        for seed, name in enumerate(("tiny", "other"))
    }


@pytest.fixture
def service(models, tmp_path):
    with ServiceClient(home=tmp_path / "home", models=models, rows=4) as client:
        yield client


@pytest.fixture
def trainer(service, models):
    """A training client whose adapter already does something, so that no gradient is zero by construction."""
    client = service.create_lora_training_client("tiny", rank=3).result()
    adapter = jax.tree.map(lambda x: 0.3 * x, models["tiny"].policy.adapter)
    policy = client._trainee.train_state.policy.replace(adapter=adapter)
    client._trainee.train_state = init_adjustable(policy)
    return client


@pytest.fixture
def make_data():
    """Data of given lengths for policy losses, or for cross entropy; the first entries were never sampled."""

    def make(lengths=LENGTHS, loss="ppo", *, choices=(), seed=0):
        rng = np.random.default_rng(seed)
        data = []
        for n in lengths:
            ids = rng.integers(0, 99, n + 1)
            shape = (n, *choices)
            given = np.broadcast_to(np.arange(n).reshape(n, *(1 for _ in choices)) >= n // 3, shape)
            targets = ids[1:] if not choices else rng.integers(0, 99, shape)
            inputs = {"target_tokens": targets.astype(np.int64)}
            if loss == "cross_entropy":
                inputs["weights"] = (rng.random(shape) * given).astype(np.float32)
            else:
                inputs["advantages"] = (rng.standard_normal(shape) * given).astype(np.float32)
                inputs["logprobs"] = ((-4.5 + 0.3 * rng.standard_normal(shape)) * given).astype(
                    np.float32
                )
            data.append(Datum(ModelInput.from_ints(ids[:-1]), inputs))
        return data

    return make
