"""GGUF files written by the gguf package from transformers' models, and metadata that is refused."""

import jax.numpy as jnp
import numpy as np
import pytest
from gguf import GGUFWriter

import mintjax.weights.gguf_file as gguf_file
from mintjax import load_policy
from mintjax.weights.gguf_file import gguf_config, load_gguf, metadata, open_gguf
from tests.transformers_models import logits, random_tokens, tiny_model

LOGITS_ATOL = 1e-4

MODULES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def interleave(weight, heads):
    """llama.cpp's order: the first row of each half, then the second of each, within every head."""
    half = len(weight) // heads // 2
    rows = [
        head * 2 * half + part * half + i
        for head in range(heads)
        for i in range(half)
        for part in (0, 1)
    ]
    return weight[rows]


def write(path, model, *, extra=None, tensors=None):
    """Writes a model as llama.cpp's converter lays it out."""
    config = model.config
    llama = config.model_type == "llama"
    writer = GGUFWriter(path, config.model_type)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_token_list([f"t{i}" for i in range(config.vocab_size)])
    for key, value in (extra or {}).items():
        writer.add_string(key, value) if isinstance(value, str) else writer.add_float32(key, value)
    for name, parameter in model.named_parameters():
        weight = parameter.detach().numpy()
        if llama and "q_proj" in name:
            weight = interleave(weight, config.num_attention_heads)
        if llama and "k_proj" in name:
            weight = interleave(weight, config.num_key_value_heads)
        if name in TOP:
            writer.add_tensor(TOP[name], weight)
        else:
            _, _, layer, rest = name.split(".", 3)
            writer.add_tensor(f"blk.{layer}.{MODULES[rest.removesuffix('.weight')]}.weight", weight)
    for name, weight in (tensors or {}).items():
        writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(("kind", "tied"), [("llama", True), ("qwen3", False)])
def test_logits_equal_transformers(kind, tied, tmp_path):
    model = tiny_model(kind, tied=tied)
    tokens = random_tokens(model)
    policy = load_policy(write(tmp_path / "m.gguf", model))
    assert policy.config.tied_head == tied
    assert np.abs(policy.logits(jnp.asarray(tokens)) - logits(model, tokens)).max() < LOGITS_ATOL


def test_rows_left_interleaved_would_be_seen(tmp_path, monkeypatch):
    model = tiny_model("llama", tied=True)
    tokens = random_tokens(model)
    monkeypatch.setattr(gguf_file, "halves_from_interleaved", lambda weight, head_dim: weight)
    policy = load_policy(write(tmp_path / "m.gguf", model))
    error = np.abs(policy.logits(jnp.asarray(tokens)) - logits(model, tokens)).max()
    assert error > 1000 * LOGITS_ATOL


def llama3_divisors(factor):
    """What llama.cpp's converter stores for Llama 3.1's rule, at head size 12 and theta 5e5."""
    divisors = []
    for i in range(6):
        wavelength = 2 * np.pi * 500000.0 ** (2 * i / 12)
        if wavelength < 8192 / 4:
            divisors.append(1.0)
        elif wavelength > 8192:
            divisors.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / 3
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, np.float32)


def test_llama3_scaling_is_recognised_by_its_divisors(tmp_path):
    model = tiny_model("llama", rope={"rope_type": "default", "rope_theta": 500000.0})
    divisors = llama3_divisors(32.0)
    assert len(set(divisors.tolist())) == 3
    path = write(tmp_path / "m.gguf", model, tensors={"rope_freqs.weight": divisors})
    rope = load_gguf(path, "m")[0].rope
    assert (rope.kind, rope.factor, rope.original_context, rope.theta) == ("llama3", 32, 8192, 5e5)
    divisors[2] = 1.5
    path = write(tmp_path / "n.gguf", model, tensors={"rope_freqs.weight": divisors})
    with pytest.raises(ValueError, match=r"rope_freqs\.weight: expected the divisors of llama3"):
        load_gguf(path, "n")


def test_weights_are_float32_or_what_is_asked_for(tmp_path):
    model = tiny_model("qwen3", tied=True)
    path = write(tmp_path / "m.gguf", model)
    assert load_gguf(path, "m")[1]["norm"].dtype == jnp.float32
    assert load_gguf(path, "m", dtype="bfloat16")[1]["norm"].dtype == jnp.bfloat16


@pytest.fixture(scope="module")
def fields(tmp_path_factory):
    path = write(tmp_path_factory.mktemp("gguf") / "m.gguf", tiny_model("llama", tied=True))
    return metadata(open_gguf(path))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"general.architecture": "gemma3"}, "general.architecture.*'gemma3'"),
        ({"llama.expert_count": 8}, "'llama.expert_count': 8"),
        ({"llama.rope.scaling.type": "yarn"}, "'llama.rope.scaling.type': 'yarn'"),
        ({"llama.attention.sliding_window": 64}, "sliding_window': 64"),
        ({"llama.rope.dimension_count": 6}, "rope.dimension_count: expected 12.*got 6"),
        ({"llama.attention.value_length": 16}, "value_length: expected 12.*got 16"),
    ],
)
def test_refusals_name_the_field(fields, change, words):
    with pytest.raises(ValueError, match=words):
        gguf_config(fields | change, "m", tied_head=True)


def test_missing_field_is_named(fields):
    del (without := dict(fields))["llama.block_count"]
    with pytest.raises(ValueError, match=r"lacks the field llama\.block_count"):
        gguf_config(without, "m", tied_head=True)


def test_scaling_of_no_kind_is_none(fields):
    config = gguf_config(fields | {"llama.rope.scaling.type": "none"}, "m", tied_head=True)
    assert config == gguf_config(fields, "m", tied_head=True)


def test_unreadable_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file"):
        open_gguf(tmp_path / "m.gguf")
    (tmp_path / "m.gguf").write_bytes(b"not a model at all, and short")
    with pytest.raises(ValueError, match="not a whole GGUF file"):
        open_gguf(tmp_path / "m.gguf")
    whole = write(tmp_path / "w.gguf", tiny_model("llama")).read_bytes()
    (tmp_path / "h.gguf").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="not a whole GGUF file"):
        load_gguf(tmp_path / "h.gguf", "h")
