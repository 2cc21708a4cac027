"""Names of tensors that several families share, as Hugging Face's modules are called."""

from mintjax.weights.stored import Stored, gate_of, up_of

TOP = {
    "embed": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "unembed": "lm_head.weight",
}

ATTENTION = {
    "attn_norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
}

LATENT_ATTENTION = {
    "attn_norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "q_a": "self_attn.q_a_proj.weight",
    "q_a_norm": "self_attn.q_a_layernorm.weight",
    "q_b": "self_attn.q_b_proj.weight",
    "kv_a": "self_attn.kv_a_proj_with_mqa.weight",
    "kv_a_norm": "self_attn.kv_a_layernorm.weight",
    "kv_b": "self_attn.kv_b_proj.weight",
    "o": "self_attn.o_proj.weight",
}

QKV_BIAS = {
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
}

QK_NORM = {"q_norm": "self_attn.q_norm.weight", "k_norm": "self_attn.k_norm.weight"}

MLP = {
    "mlp_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
}

EXPERTS = {
    "router": "mlp.gate.weight",
    "experts_gate": "mlp.experts.*.gate_proj.weight",
    "experts_up": "mlp.experts.*.up_proj.weight",
    "experts_down": "mlp.experts.*.down_proj.weight",
}

CORRECTED_ROUTER = {"router_correction": "mlp.gate.e_score_correction_bias"}

SHARED_EXPERTS = {
    "shared_gate": "mlp.shared_experts.gate_proj.weight",
    "shared_up": "mlp.shared_experts.up_proj.weight",
    "shared_down": "mlp.shared_experts.down_proj.weight",
}

# transformers' own layout since version 5, which save_pretrained(save_original_format=False) writes.
PACKED_EXPERTS = {
    "experts_gate": Stored("mlp.experts.gate_up_proj", gate_of),
    "experts_up": Stored("mlp.experts.gate_up_proj", up_of),
    "experts_down": Stored("mlp.experts.down_proj"),
}
