"""What DeepSeek's checkpoints may have beside what every family is compared in: Kimi-K2's name, plainer queries, layers beyond."""

import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mintjax import load_policy
from mintjax.cache import init_state
from mintjax.models.dense import weight_shapes
from mintjax.models.rope import yarn_attention_factor
from mintjax.weights.config_json import model_config
from tests.memory_table import DEEPSEEK_V3, KIMI_K2
from tests.models.test_families import LOGITS_ATOL
from tests.models.tiny_families import TINY_FAMILIES
from tests.tiny import tiny_policy
from tests.transformers_models import logits, random_tokens, saved, tiny_model

# As published, beside what each has of its own.
PUBLISHED = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
    "aux_loss_alpha": 0.001,
    "ep_size": 1,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "pretraining_tp": 1,
    "q_lora_rank": 1536,
    "quantization_config": {
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "quant_method": "fp8",
        "weight_block_size": [128, 128],
    },
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "scoring_func": "sigmoid",
    "seq_aux": True,
    "tie_word_embeddings": False,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "v_head_dim": 128,
}
YARN = {"type": "yarn", "mscale": 1.0, "mscale_all_dim": 1.0, "beta_slow": 1}
V3 = PUBLISHED | {
    "model_type": "deepseek_v3",
    "first_k_dense_replace": 3,
    "max_position_embeddings": 163840,
    "n_group": 8,
    "n_routed_experts": 256,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "rope_scaling": YARN
    | {"factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32},
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "topk_group": 4,
    "vocab_size": 129280,
}
K2 = PUBLISHED | {
    "model_type": "kimi_k2",
    "first_k_dense_replace": 1,
    "max_position_embeddings": 131072,
    "n_group": 1,
    "n_routed_experts": 384,
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "num_nextn_predict_layers": 0,
    "rope_scaling": YARN
    | {"factor": 32.0, "original_max_position_embeddings": 4096, "beta_fast": 1.0},
    "rope_theta": 50000.0,
    "routed_scaling_factor": 2.827,
    "topk_group": 1,
    "vocab_size": 163840,
}


@pytest.mark.parametrize(("fields", "shape"), [(V3, DEEPSEEK_V3), (K2, KIMI_K2)], ids=["V3", "K2"])
def test_the_published_configurations(fields, shape):
    config = model_config(fields, shape.name)
    factor = fields["rope_scaling"]["factor"]
    sharpened = yarn_attention_factor(factor) ** 2 * (576 / 192) ** 0.5
    assert config.query_scale == pytest.approx(sharpened)
    assert (config.rope.kind, config.rope.factor, config.rope.attention_factor) == (
        "yarn",
        factor,
        1.0,
    )
    assert replace(config, query_scale=1.0, rope=shape.rope) == shape


def test_a_cache_holds_576_numbers_of_a_token_in_a_layer():
    policy = tiny_policy()
    base = weight_shapes(DEEPSEEK_V3, jnp.bfloat16)
    shapes = policy.replace(config=DEEPSEEK_V3, base=base, adapter=None)
    state = jax.eval_shape(lambda: init_state(shapes, 1, 128))
    numbers = sum(x.size for x in jax.tree.leaves(state.buffers))
    assert numbers == 61 * 128 * 576


@pytest.fixture(scope="module", params=["kimi", "plain queries", "halves"])
def variant(request, tmp_path_factory):
    """A model of transformers and its directory, changed in what a checkpoint may be other than its family's test."""
    tiny = TINY_FAMILIES["deepseek_v3"]
    change = {
        "kimi": {"n_group": 1, "topk_group": 1},
        "plain queries": {"q_lora_rank": None},
        "halves": {"rope_interleave": False},
    }[request.param]
    directory = tmp_path_factory.mktemp("variant")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TINY_FAMILIES, "changed", tiny._replace(sizes=tiny.sizes | change))
        model = tiny_model("changed", rope="deepseek yarn")
    saved(model, directory)
    if request.param == "kimi":
        file = directory / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"model_type": "kimi_k2"}))
    return model, directory


def test_logits_of_other_checkpoints(variant):
    model, directory = variant
    tokens = random_tokens(model, length=96)
    got = load_policy(directory).base_only().logits(jnp.asarray(tokens))
    assert np.abs(got - logits(model, tokens)).max() < LOGITS_ATOL


def test_layers_beyond_the_last_are_not_run(tmp_path):
    model = tiny_model("deepseek_v3", rope="default")
    file = saved(model, tmp_path) / "model.safetensors"
    tensors = load_file(file)
    beyond = {"model.layers.2.eh_proj.weight": np.ones((4, 4), np.float32)}
    save_file(tensors | beyond, file)
    assert len(load_policy(tmp_path).base["layers"]) == 2
    save_file(tensors | {"model.layers.1.eh_proj.weight": beyond.popitem()[1]}, file)
    with pytest.raises(ValueError, match=r"unexpected model\.layers\.1\.eh_proj\.weight"):
        load_policy(tmp_path)
