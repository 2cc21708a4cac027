"""The client against the core under it: what a training call adds, and what live caches save in a re-rendered talk."""

import dataclasses
import tempfile

import jax
import numpy as np

from mintjax import ServiceClient
from mintjax.adapters import LoraConfig
from mintjax.bench.clock import interleaved
from mintjax.bench.models import SMALL, random_policy
from mintjax.bench.rows import speed_up, time_ratio
from mintjax.client import BaseModel
from mintjax.client.datums import lay_out, loss_call
from mintjax.train.gradients import gradients
from mintjax.train.losses import Ppo
from mintjax.train.optimizer import AdamSettings, adjusted_update, init_adjustable
from mintjax.types import AdamParams, Datum, ModelInput, SamplingParams
from tests.tiny import CONFIG as TINY
from tests.tiny import tiny_policy, tiny_tokenizer

ROWS, TOKENS, CALLS = 8, 64, 20
TURNS, NEW, REPLY = 8, 64, 8
RUNS = 5


def training(service: ServiceClient) -> None:
    """A pair of `forward_backward` and `optim_step`, waited for, over `gradients` and `adjusted_update`."""
    rng = np.random.default_rng(0)
    data = []
    for _ in range(ROWS):
        ids = rng.integers(0, 61, TOKENS)
        inputs = {
            "target_tokens": ids[1:],
            "logprobs": np.full(TOKENS - 1, -4.0, np.float32),
            "advantages": rng.standard_normal(TOKENS - 1).astype(np.float32),
        }
        data.append(Datum(ModelInput.from_ints(ids[:-1]), inputs))
    client = service.create_lora_training_client("tiny", rank=3).result()
    policy = client._trainee.train_state.policy
    ((batch, _),) = lay_out(data, loss_call("ppo", None), policy.config, ROWS)
    state = init_adjustable(policy)

    def core() -> None:
        nonlocal state
        for _ in range(CALLS):
            grads, metrics = gradients(state.policy, batch, Ppo())
            float(metrics.loss)
            state = adjusted_update(state, grads, AdamSettings(1e-4, eps=1e-12))
        jax.block_until_ready(state.policy.adapter)

    def called() -> None:
        for _ in range(CALLS):
            loss = client.forward_backward(data, "ppo")
            client.optim_step(AdamParams()).result()
            loss.result()

    ours, bare = interleaved(called, core, runs=RUNS)
    added = 1000 * (ours.seconds - bare.seconds) / CALLS / 2
    figures = time_ratio(ours, bare, rows=ROWS, tokens=TOKENS, added_ms_a_call=added)
    print(figures.row("client_training").as_json())


def conversation(service: ServiceClient) -> None:
    """Eight turns whose prompts repeat all before them: a client without caches against one with them."""
    rng = np.random.default_rng(0)
    turns = [rng.integers(0, SMALL.vocab_size, NEW).tolist() for _ in range(TURNS)]
    params = SamplingParams(max_tokens=REPLY, temperature=0, stop=[])

    def talk(clients) -> None:
        client = clients.create_sampling_client(base_model="bench").result()
        prompt: list[int] = []
        for new in turns:
            prompt = prompt + new
            reply = client.sample(ModelInput.from_ints(prompt), 1, params).result()
            prompt = prompt + reply.sequences[0].tokens
        prefilled[clients] = client.stats().prefilled

    prefilled: dict[ServiceClient, int] = {}
    with ServiceClient(models=service._session.models, cache_bytes=0) as forgetful:
        ours, other = interleaved(lambda: talk(service), lambda: talk(forgetful), runs=RUNS)
        figures = speed_up(
            ours,
            other,
            turns=TURNS,
            new_tokens=NEW,
            reply_tokens=REPLY,
            prefilled=prefilled[service],
            prefilled_without=prefilled[forgetful],
        )
        print(figures.row("client_prefix_reuse").as_json())


def main() -> None:
    """Measures both."""
    small = dataclasses.replace(TINY, vocab_size=100)
    lora = LoraConfig(rank=3, alpha=6.0, train_unembed=True)
    models = {
        "tiny": BaseModel(tiny_policy(config=small, lora=lora), tiny_tokenizer()),
        "bench": BaseModel(random_policy(SMALL), tiny_tokenizer()),
    }
    with tempfile.TemporaryDirectory() as home, ServiceClient(home=home, models=models) as service:
        training(service)
        conversation(service)


if __name__ == "__main__":
    main()
