"""config.json: what is read, and what is refused by name."""

import math
from dataclasses import replace

import pytest
import transformers

from mintjax.models.config import ModelConfig, RopeConfig
from mintjax.models.expert_config import ExpertsConfig, RoutingConfig
from mintjax.models.rope import rope_frequencies
from mintjax.weights.config_json import model_config

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "transformers.js_config": {"dtype": "q4"},
}
QWEN3 = LLAMA | {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_key_value_heads": 2,
    "head_dim": 16,
    "tie_word_embeddings": True,
    "rope_theta": 1000000,
    "rope_scaling": None,
    "sliding_window": None,
    "use_sliding_window": False,
    "max_window_layers": 3,
}


def test_llama_with_what_it_leaves_out():
    assert model_config(LLAMA, "m") == ModelConfig(
        name="m",
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_layers=3,
        num_heads=4,
        num_kv_heads=4,
        head_dim=8,
        context=256,
        norm_eps=1e-5,
        qk_norm=False,
        tied_head=False,
        rope=RopeConfig(theta=10000.0),
    )


def test_qwen3():
    config = model_config(QWEN3, "m")
    assert (config.qk_norm, config.tied_head) == (True, True)
    assert (config.num_kv_heads, config.head_dim, config.rope.theta) == (2, 16, 1000000)


@pytest.mark.parametrize(
    "scaling",
    [
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "original_max_position_embeddings": 64,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        },
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    ],
)
def test_both_spellings_of_scaling_are_one(scaling):
    new = model_config(LLAMA | {"rope_parameters": scaling | {"rope_theta": 5e5}}, "m")
    kind = scaling["rope_type"]
    old_scaling = {key: value for key, value in scaling.items() if key != "rope_type"}
    old = model_config(
        LLAMA | {"rope_theta": 5e5, "rope_scaling": old_scaling | {"type": kind}}, "m"
    )
    assert new == old
    assert new.rope.kind == kind and new.rope.theta == 5e5
    assert new.rope.original_context == 64 and new.rope.factor == scaling["factor"]


def test_what_transformers_saves_is_accepted():
    for saved in (
        transformers.LlamaConfig(),
        transformers.Qwen2Config(),
        transformers.Qwen3Config(),
        transformers.Qwen3MoeConfig(),
    ):
        config = model_config(saved.to_dict() | {"use_cache": False}, "m")
        assert config.num_layers == saved.num_hidden_layers
        assert config.num_heads * config.head_dim == config.hidden_size or config.qk_norm


# As the file of openai/gpt-oss-20b has it.
GPT_OSS = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "eos_token_id": 200002,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072,
    "model_type": "gpt_oss",
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "output_router_logits": False,
    "quantization_config": {
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"],
        "quant_method": "mxfp4",
    },
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "router_aux_loss_coef": 0.9,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "use_cache": True,
    "vocab_size": 201088,
}


def test_gpt_oss():
    config = model_config(GPT_OSS, "m")
    assert config.windows == (128, None) * 12 and config.sinks
    assert config.biases == ("q", "k", "v", "o")
    assert config.experts == ExpertsConfig(
        RoutingConfig("chosen_softmax", 32, 4), 2880, activation="clamped_swiglu", bias=True
    )
    assert config.rope == RopeConfig("yarn", 150000, 32.0, 4096, truncate=False)
    theirs = transformers.GptOssConfig(**GPT_OSS)
    assert model_config(theirs.to_dict() | {"use_cache": False}, "m") == config


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config=.*awq"),
        ({"experts_per_token": 2}, r"experts_per_token=2 \(only 4"),
        ({"initial_context_length": 8192}, r"initial_context_length=8192 \(only 4096"),
        ({"rope_scaling": None}, "rope_parameters=None"),
        ({"attention_bias": False}, r"attention_bias=False \(only True"),
        ({"swiglu_alpha": 1.0}, "swiglu_alpha=1.0"),
        ({"layer_types": ["sliding_attention"]}, "layer_types=.*one for each layer"),
    ],
)
def test_gpt_oss_refusals(change, words):
    with pytest.raises(ValueError, match=words):
        model_config(GPT_OSS | change, "m")


# As the files of google/gemma-3-1b-it and of transformers 5 say it.
GEMMA3 = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "attention_bias": False,
    "attn_logit_softcapping": None,
    "cache_implementation": "hybrid",
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "max_position_embeddings": 32768,
    "num_attention_heads": 4,
    "num_hidden_layers": 26,
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "vocab_size": 262144,
}


def test_gemma3_of_both_ages_is_one():
    old = model_config(GEMMA3 | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, "m")
    assert old.windows == tuple(None if i % 6 == 5 else 512 for i in range(26))
    assert (old.rope_of(5), old.rope_of(0)) == (
        RopeConfig("linear", 1000000, 8.0),
        RopeConfig(theta=10000),
    )
    assert old.tied_head and old.query_scale == 1 and old.embed_scale == 1152**0.5
    theirs = transformers.Gemma3TextConfig(
        **GEMMA3 | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    )
    assert model_config(theirs.to_dict() | {"use_cache": False}, "m") == old


def multimodal(**text):
    """As the file of google/gemma-3-4b-it says it, which leaves out what is transformers' default."""
    return {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "boi_token_index": 255999,
        "eoi_token_index": 256000,
        "eos_token_id": [1, 106],
        "image_token_index": 262144,
        "initializer_range": 0.02,
        "mm_tokens_per_image": 256,
        "model_type": "gemma3",
        "text_config": {
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "model_type": "gemma3_text",
            "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
            **text,
        },
        "torch_dtype": "bfloat16",
        "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
    }


def test_gemma3s_text_part_is_what_transformers_makes_of_it():
    theirs = transformers.Gemma3Config(**multimodal()).text_config.to_dict()
    architecture = {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text"}
    theirs = {key: value for key, value in theirs.items() if value is not None} | architecture
    assert model_config(multimodal(), "m") == model_config(theirs, "m")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ({"hidden_size": None}, "text_config: config.json lacks hidden_size"),
        ({"final_logit_softcapping": 30.0}, "text_config: .*final_logit_softcapping=30.0"),
        ({"model_type": "qwen3"}, "text_config.model_type: expected 'gemma3_text', got 'qwen3'"),
    ],
)
def test_fields_of_gemma3s_text_part_are_refused_too(text, words):
    with pytest.raises(ValueError, match=words):
        model_config(multimodal(**text), "m")


def test_fields_beside_gemma3s_text_part_are_refused():
    with pytest.raises(ValueError, match=r"audio_config=.* .unknown"):
        model_config(multimodal() | {"audio_config": {"hidden_size": 8}}, "m")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sliding_window": None}, "lacks sliding_window"),
        ({"layer_types": ["full_attention"] * 25}, "layer_types=.* one for each layer"),
        ({"rope_parameters": {"rope_theta": 1e4}}, "rope_parameters: expected 'full_attention'"),
        ({"hidden_act": "silu"}, "hidden_act='silu' .unknown"),
    ],
)
def test_gemma3s_refusals_name_the_field(change, words):
    with pytest.raises(ValueError, match=words):
        model_config(GEMMA3 | change, "m")


def test_windows_are_one_a_layer():
    with pytest.raises(ValueError, match="windows: expected one for each of 3 layers"):
        replace(model_config(LLAMA, "m"), windows=(4,))


# As Qwen3-30B-A3B has it on the hub, but for the sizes.
QWEN3_MOE = QWEN3 | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize(
    ("change", "dense"),
    [
        ({}, ()),
        ({"decoder_sparse_step": 2}, (0, 2)),
        ({"mlp_only_layers": [1]}, (1,)),
        ({"decoder_sparse_step": 3, "mlp_only_layers": [1]}, (0, 1)),
        ({"num_experts": None, "num_local_experts": 8}, ()),
    ],
)
def test_qwen3_moe(change, dense):
    config = model_config(QWEN3_MOE | change, "m")
    assert config.qk_norm
    assert config.experts == ExpertsConfig(
        RoutingConfig("softmax", 8, 2, normalise=True), 24, dense_layers=dense
    )
    assert [i for i in range(3) if config.experts_of(i) is None] == list(dense)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_experts": None}, "num_experts=None and num_local_experts=None"),
        ({"num_local_experts": 4}, "num_experts=8 and num_local_experts=4"),
        ({"num_experts": 0}, "num_experts=0"),
        ({"mlp_only_layers": [3]}, r"mlp_only_layers=\[3\] \(only layers from 0 to 2\)"),
        ({"num_experts_per_tok": 9}, "routing.per_token: expected 1 to 8.*9"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step=0"),
        ({"norm_topk_prob": None}, "lacks norm_topk_prob"),
        ({"moe_intermediate_size": None}, "lacks moe_intermediate_size"),
        ({"shared_expert_intermediate_size": 24}, "shared_expert_intermediate_size=24"),
    ],
)
def test_qwen3_moe_refusals(change, words):
    with pytest.raises(ValueError, match=words):
        model_config(QWEN3_MOE | change, "m")


def yarn(**fields):
    parameters = {"rope_type": "yarn", "original_max_position_embeddings": 64, **fields}
    return model_config(LLAMA | {"rope_parameters": parameters}, "m").rope


def test_yarn_without_factor_takes_the_ratio_of_contexts():
    assert yarn().factor == 256 / 64


def test_deepseek_mscale_makes_the_attention_factor():
    rope = yarn(factor=40.0, mscale=1.5, mscale_all_dim=0.5)
    expected = (0.15 * math.log(40) + 1) / (0.05 * math.log(40) + 1)
    assert rope.attention_factor == pytest.approx(expected)
    assert yarn(factor=40.0, mscale=1.0, mscale_all_dim=1.0).attention_factor == 1.0
    # One of the two alone is not read, as in transformers.
    assert yarn(factor=40.0, mscale=1.5).attention_factor is None
    assert yarn(factor=40.0, attention_factor=1.2, mscale=1.5, mscale_all_dim=1.0) == RopeConfig(
        "yarn", 10000.0, 40.0, 64, attention_factor=1.2
    )
    assert rope_frequencies(yarn(factor=40.0), 8)[1] == pytest.approx(0.1 * math.log(40) + 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "mistral"}, "model_type.*'mistral'"),
        ({"model_type": "qwen2_moe"}, "model_type: expected one of .*'qwen2', .*got 'qwen2_moe'"),
        ({"model_type": None}, "model_type.*None"),
        ({"rms_norm_eps": None}, "lacks rms_norm_eps"),
        (
            {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]},
            "lacks head_dim, num_key_value_heads",
        ),
        (
            {"architectures": ["LlamaForSequenceClassification"]},
            r"architectures: Llama 3 is read from .*LlamaForCausalLM.*, got .*others are of .*Qwen3",
        ),
        ({"attention_bias": True}, "attention_bias=True"),
        ({"mlp_bias": True}, "mlp_bias=True"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"sliding_window": 4096}, "sliding_window=4096"),
        ({"use_sliding_window": True, "sliding_window": 64}, "use_sliding_window=True"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types=.*sliding"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        ({"rope_interleaved": True}, "rope_interleaved=True"),
        ({"pretraining_tp": 2}, "pretraining_tp=2"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config=.*gptq"),
        ({"num_local_experts": 8}, "num_local_experts=8 .unknown"),
        ({"logits_scaling": 8.0}, "logits_scaling=8.0 .unknown"),
        ({"auto_map": {"AutoModel": "x"}}, "auto_map=.*unknown"),
        ({"hidden_size": 34}, "hidden_size 34 is no multiple"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type.*'dynamic'"),
        ({"rope_scaling": {"type": "linear"}}, "linear rotary embedding lacks factor"),
        (
            {"rope_scaling": {"type": "yarn", "rope_type": "llama3"}},
            "rope_type.*'(yarn|llama3)', '",
        ),
        ({"rope_parameters": {"mrope_section": [1, 2]}}, "does not implement.*mrope_section"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor.*0.5"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "lacks original_max_position"),
        (
            {"rope_scaling": {"type": "llama3", "original_max_position_embeddings": 8}},
            "lacks factor, low_freq_factor, high_freq_factor",
        ),
        ({"rope_scaling": {"type": "default"}, "rope_parameters": {"rope_theta": 1.0}}, "both"),
    ],
)
def test_refusals_name_the_field_and_its_value(change, words):
    with pytest.raises(ValueError, match=words):
        model_config(LLAMA | change, "m")


def test_all_refused_fields_are_named_at_once():
    with pytest.raises(ValueError, match=r"mlp_bias=True.*num_experts=4"):
        model_config(LLAMA | {"mlp_bias": True, "num_experts": 4}, "m")
