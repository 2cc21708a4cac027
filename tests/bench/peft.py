"""Sampling, prefill and a LoRA step, against transformers and PEFT: the same weights and threads, in one process."""

import argparse
import importlib.util
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from mintjax.adapters import init_adapter
from mintjax.allocator import keep_freed_memory
from mintjax.bench.clock import interleaved
from mintjax.bench.models import SMOLLM2, random_policy, random_tokens
from mintjax.bench.rows import speed_up
from mintjax.cache import bucket, init_state
from mintjax.decoding import DecodeParams
from mintjax.extension import extend
from mintjax.generation import generate
from mintjax.models.config import ModelConfig
from mintjax.models.dense import unembed
from mintjax.models.sharding import weight_key
from mintjax.policy import Policy
from mintjax.train.batches import Batch
from mintjax.train.gradients import gradients
from mintjax.train.losses import ImportanceSampling
from mintjax.train.optimizer import init_train_state, make_optimizer, update
from mintjax.types import Segment
from mintjax.weights.families.llama3 import FAMILY

ROWS, PROMPT, NEW, RANK = 8, 128, 64, 8
DTYPES = ("float32", "bfloat16")
LEARNING_RATE = 1e-4
# Of two orders of summing float32 through 30 layers, and of bfloat16 residual streams against float32 ones.
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.3}

Function = Callable[[], Any]


def main() -> None:
    """Measures each kind of work in each precision."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=9, help="how often each of a pair is timed")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    parser.add_argument("--work", nargs="+", choices=WORK, default=[*WORK])
    options = parser.parse_args()
    keep_freed_memory()  # of both, as in `mintjax train`
    for dtype in options.dtypes:
        names = {work: f"{work}_over_peft_{dtype}" for work in options.work}
        if importlib.util.find_spec("peft") is None:
            for name in names.values():
                print(json.dumps({"name": name, "skipped": "peft is not installed"}))
            continue
        policy = new_policy(SMOLLM2, dtype)
        model = peft_model(policy)
        check_equal(policy, model, dtype)
        for work, name in names.items():
            tokens, functions = WORK[work](policy, model)
            ours, other = interleaved(*functions, runs=options.runs)
            speeds = {
                "ours_tokens_a_second": tokens / ours.seconds,
                "other_tokens_a_second": tokens / other.seconds,
            }
            print(speed_up(ours, other, **speeds).row(name).as_json(), flush=True)


def new_policy(config: ModelConfig, dtype: str) -> Policy:
    """Random weights and an adapter that changes nothing yet, as PEFT's."""
    policy = random_policy(config, rank=RANK)
    base = jax.tree.map(lambda x: x.astype(dtype), policy.base)
    return replace(policy, base=base, adapter=init_adapter(config, policy.lora, jax.random.key(0)))


def peft_model(policy: Policy) -> Any:
    """The policy's base weights as a transformers model, with PEFT's LoRA on every linear of its layers."""
    import peft
    import torch
    import transformers

    config = policy.config
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.context,
            rms_norm_eps=config.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope.theta},
            tie_word_embeddings=config.tied_head,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    leaves = jax.tree_util.tree_leaves_with_path(policy.base)
    tensors = {
        FAMILY.tensor_name(weight_key(path)): torch.from_numpy(np.array(leaf, np.float32))
        for path, leaf in leaves
    }
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    model.load_state_dict(tensors)
    model = model.to(getattr(torch, str(policy.base["embed"].dtype)))
    lora = peft.LoraConfig(
        r=policy.lora.rank, lora_alpha=int(policy.lora.alpha), target_modules="all-linear"
    )
    return peft.get_peft_model(model, lora)


def check_equal(policy: Policy, model: Any, dtype: str) -> None:
    """Holds the two against each other: what computes something else is not to be timed."""
    _, (ours, other) = prefill(policy, model)
    np.testing.assert_allclose(ours(), other().float().numpy(), atol=TOLERANCE[dtype], rtol=0)


def prefill(policy: Policy, model: Any) -> tuple[int, tuple[Function, Function]]:
    """A prompt's cache and the logits of its first new token."""
    import torch

    prompts = random_tokens(policy.config, ROWS, PROMPT)
    ids = torch.from_numpy(prompts).long()

    def ours() -> jax.Array:
        return first_logits(policy, extended(policy, prompts).hidden)

    def other() -> Any:
        with torch.inference_mode():
            return model(input_ids=ids, use_cache=True, logits_to_keep=1).logits[:, -1]

    return prompts.size, (ours, other)


def sampling(policy: Policy, model: Any) -> tuple[int, tuple[Function, Function]]:
    """A prompt's cache and 64 sampled tokens a row."""
    import torch

    prompts = random_tokens(policy.config, ROWS, PROMPT)
    ids = torch.from_numpy(prompts).long()
    keys = jax.random.split(jax.random.key(0), ROWS)
    params = DecodeParams(
        np.float32(1),
        np.int32(0),
        np.float32(1),
        np.array([-1], np.int32),
        np.full(ROWS, NEW, np.int32),
    )

    def ours() -> list[np.ndarray]:
        state = extended(policy, prompts)
        return generate(policy, state, keys, params, buffer=NEW, donate=True).tokens

    def other() -> Any:
        with torch.inference_mode():
            return model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=NEW,
                do_sample=True,
                top_k=0,
                pad_token_id=0,
            )

    return ROWS * NEW, (ours, other)


def step(policy: Policy, model: Any) -> tuple[int, tuple[Function, Function]]:
    """Gradient and AdamW update on prompts and replies; logits where a reply's token is scored, and only there."""
    import torch

    tokens = random_tokens(policy.config, ROWS, PROMPT + NEW)
    mask = np.broadcast_to(np.arange(PROMPT + NEW) >= PROMPT, tokens.shape).astype(np.float32)
    advantages = mask * np.random.default_rng(1).standard_normal(tokens.shape, np.float32)
    old = -mask * np.float32(np.log(policy.config.vocab_size))
    length = np.full(ROWS, PROMPT + NEW, np.int32)
    batch = Batch(tokens, length, mask, advantages, old, advantages, np.float32(1))
    train_state = init_train_state(policy, make_optimizer(LEARNING_RATE))

    def ours() -> Any:
        nonlocal train_state
        grads, _ = gradients(train_state.policy, batch, ImportanceSampling())
        train_state = update(train_state, grads)
        return train_state.policy.adapter

    trained = [x for x in model.parameters() if x.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE)
    ids = torch.from_numpy(tokens).long()
    scored, weight, sampled = (
        torch.from_numpy(x[:, PROMPT:]) for x in (ids.numpy(), advantages, old)
    )

    def other() -> None:
        logits = model(input_ids=ids, use_cache=False, logits_to_keep=NEW + 1).logits[:, :-1]
        logprobs = logits.float().log_softmax(-1).gather(-1, scored[..., None])[..., 0]
        loss = -(torch.exp(logprobs - sampled) * weight).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return tokens.size, (ours, other)


def extended(policy: Policy, prompts: np.ndarray):
    """A state that holds the prompts, with room for the replies."""
    state = init_state(policy, ROWS, bucket(PROMPT + NEW))
    return extend(policy, Segment(prompts, np.full(ROWS, PROMPT, np.int32)), state)


@jax.jit
def first_logits(policy: Policy, hidden: jax.Array) -> jax.Array:
    """The logits of the next token."""
    return unembed(policy.lora, policy.base, policy.adapter, hidden)


WORK = {"generate": sampling, "prefill": prefill, "step": step}

if __name__ == "__main__":
    main()
