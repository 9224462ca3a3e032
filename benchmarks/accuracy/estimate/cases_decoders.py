"""Decoder language models, by their published configurations. Where a model is far larger than a
GPU its layers are fewer, which the name says; all else is as published.
"""

from __future__ import annotations

from typing import Any

from benchmarks.accuracy.estimate.case import Case
from ullage.players.eager.training.recipe import Lora, Recipe

LARGE = ("--memory", "4TiB")  # more than one GPU has: the case is about the sum, not about fitting

GPT2 = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 50257,
    "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024,
}  # fmt: skip
OPT_1_3B = {
    "model_type": "opt", "vocab_size": 50272, "hidden_size": 2048, "num_hidden_layers": 24,
    "ffn_dim": 8192, "num_attention_heads": 32, "max_position_embeddings": 2048,
    "word_embed_proj_dim": 2048, "dropout": 0.1,
}  # fmt: skip
PYTHIA_1_4B = {
    "model_type": "gpt_neox", "vocab_size": 50304, "hidden_size": 2048, "num_hidden_layers": 24,
    "num_attention_heads": 16, "intermediate_size": 8192, "rotary_pct": 0.25,
    "max_position_embeddings": 2048, "tie_word_embeddings": False,
}  # fmt: skip
LLAMA_1B = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 2048, "num_hidden_layers": 16,
    "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
    "max_position_embeddings": 131072, "tie_word_embeddings": True,
}  # fmt: skip
LLAMA_8B = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "num_hidden_layers": 32,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}  # fmt: skip
TINYLLAMA = {
    "model_type": "llama", "vocab_size": 32000, "hidden_size": 2048, "num_hidden_layers": 22,
    "intermediate_size": 5632, "num_attention_heads": 32, "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
}  # fmt: skip
MISTRAL_7B = {
    "model_type": "mistral", "vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
    "max_position_embeddings": 32768, "sliding_window": 4096,
}  # fmt: skip
QWEN2_0_5B = {
    "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "num_hidden_layers": 24,
    "intermediate_size": 4864, "num_attention_heads": 14, "num_key_value_heads": 2,
    "max_position_embeddings": 32768, "tie_word_embeddings": True, "use_sliding_window": False,
}  # fmt: skip
QWEN2_7B = {
    "model_type": "qwen2", "vocab_size": 152064, "hidden_size": 3584, "num_hidden_layers": 28,
    "intermediate_size": 18944, "num_attention_heads": 28, "num_key_value_heads": 4,
    "max_position_embeddings": 32768, "tie_word_embeddings": False, "use_sliding_window": False,
}  # fmt: skip
QWEN3_0_6B = {
    "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024, "num_hidden_layers": 28,
    "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 128, "max_position_embeddings": 40960, "tie_word_embeddings": True,
}  # fmt: skip
QWEN3_8B = {
    "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 4096, "num_hidden_layers": 36,
    "intermediate_size": 12288, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "max_position_embeddings": 40960, "tie_word_embeddings": False,
}  # fmt: skip
GEMMA2_2B = {
    "model_type": "gemma2", "vocab_size": 256000, "hidden_size": 2304, "num_hidden_layers": 26,
    "intermediate_size": 9216, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
    "max_position_embeddings": 8192, "sliding_window": 4096,
}  # fmt: skip
GEMMA3_1B = {
    "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "vocab_size": 262144,
    "hidden_size": 1152, "num_hidden_layers": 26, "intermediate_size": 6912,
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256, "sliding_window": 512,
    "max_position_embeddings": 32768,
}  # fmt: skip
PHI3_MINI = {
    "model_type": "phi3", "vocab_size": 32064, "hidden_size": 3072, "num_hidden_layers": 32,
    "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 32,
    "max_position_embeddings": 4096, "sliding_window": 2047, "pad_token_id": 32000,
}  # fmt: skip
GRANITE_2B = {
    "model_type": "granite", "vocab_size": 49155, "hidden_size": 2048, "num_hidden_layers": 40,
    "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8,
    "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.015625,
    "logits_scaling": 8.0, "max_position_embeddings": 131072, "tie_word_embeddings": True,
}  # fmt: skip
GRANITE_4_H_MICRO = {
    "model_type": "granitemoehybrid", "vocab_size": 100352, "hidden_size": 2048,
    "num_hidden_layers": 40, "intermediate_size": 8192, "shared_intermediate_size": 8192,
    "num_attention_heads": 32, "num_key_value_heads": 8, "num_local_experts": 0,
    "num_experts_per_tok": 0, "tie_word_embeddings": True, "position_embedding_type": "nope",
    "mamba_n_heads": 64, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1,
    "mamba_d_conv": 4, "mamba_expand": 2, "mamba_chunk_size": 256,
    "max_position_embeddings": 131072,
    "layer_types": [*5 * ["mamba"], "attention", *4 * ["mamba"]] * 4,
}  # fmt: skip
GRANITE_4_H_TINY = {
    **GRANITE_4_H_MICRO, "hidden_size": 1536, "intermediate_size": 512,
    "shared_intermediate_size": 1024, "num_attention_heads": 12, "num_key_value_heads": 4,
    "num_local_experts": 64, "num_experts_per_tok": 6, "mamba_n_heads": 48,
}  # fmt: skip
BAMBA_9B = {
    "model_type": "bamba", "vocab_size": 128256, "hidden_size": 4096, "num_hidden_layers": 32,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
    "attn_layer_indices": [9, 18, 27], "mamba_n_heads": 128, "mamba_d_head": 64,
    "mamba_n_groups": 1, "mamba_d_state": 128, "mamba_d_conv": 4, "mamba_expand": 2,
    "mamba_chunk_size": 256, "max_position_embeddings": 262144, "z_loss_coefficient": 0.0,
}  # fmt: skip
NEMOTRON_H_8B = {
    "model_type": "nemotron_h", "vocab_size": 131072, "hidden_size": 4096, "num_hidden_layers": 52,
    "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    "intermediate_size": 21504, "num_attention_heads": 32, "num_key_value_heads": 8,
    "head_dim": 128, "mamba_num_heads": 128, "mamba_head_dim": 64, "ssm_state_size": 128,
    "n_groups": 8, "conv_kernel": 4, "chunk_size": 128, "max_position_embeddings": 8192,
}  # fmt: skip
OLMO2_7B = {
    "model_type": "olmo2", "vocab_size": 100352, "hidden_size": 4096, "num_hidden_layers": 32,
    "intermediate_size": 11008, "num_attention_heads": 32, "num_key_value_heads": 32,
    "max_position_embeddings": 4096,
}  # fmt: skip
SMOLLM3_3B = {
    "model_type": "smollm3", "vocab_size": 128256, "hidden_size": 2048, "num_hidden_layers": 36,
    "intermediate_size": 11008, "num_attention_heads": 16, "num_key_value_heads": 4,
    "max_position_embeddings": 65536, "no_rope_layer_interval": 4, "tie_word_embeddings": True,
}  # fmt: skip
MIXTRAL = {
    "model_type": "mixtral", "vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
    "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None,
    "max_position_embeddings": 32768,
}  # fmt: skip
QWEN3_30B = {
    "model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 48,
    "intermediate_size": 6144, "num_attention_heads": 32, "num_key_value_heads": 4,
    "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
    "norm_topk_prob": True, "max_position_embeddings": 40960,
}  # fmt: skip
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "vocab_size": 129280, "hidden_size": 7168,
    "num_hidden_layers": 61, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "num_attention_heads": 128, "num_key_value_heads": 128, "n_shared_experts": 1,
    "n_routed_experts": 256, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
    "v_head_dim": 128, "n_group": 8, "topk_group": 4, "max_position_embeddings": 163840,
}  # fmt: skip
GPT_OSS_20B = {
    "model_type": "gpt_oss", "vocab_size": 201088, "hidden_size": 2880, "num_hidden_layers": 24,
    "intermediate_size": 2880, "num_attention_heads": 64, "num_key_value_heads": 8,
    "head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128,
    "max_position_embeddings": 131072,
}  # fmt: skip
LLAMA4_SCOUT = {
    "model_type": "llama4_text", "architectures": ["Llama4ForCausalLM"], "vocab_size": 202048,
    "hidden_size": 5120, "num_hidden_layers": 48, "intermediate_size": 8192,
    "intermediate_size_mlp": 16384, "num_attention_heads": 40, "num_key_value_heads": 8,
    "head_dim": 128, "num_local_experts": 16, "num_experts_per_tok": 1,
    "attention_chunk_size": 8192, "max_position_embeddings": 131072,
}  # fmt: skip

# As the configuration classes of transformers 5.23 have them, with the sizes of published models.
QWEN3_5_9B = {
    "model_type": "qwen3_5_text", "vocab_size": 248320, "hidden_size": 4096,
    "intermediate_size": 12288, "num_hidden_layers": 32, "num_attention_heads": 16,
    "num_key_value_heads": 4, "head_dim": 256, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "max_position_embeddings": 262144,
}  # fmt: skip
QWEN3_5_35B = {
    "model_type": "qwen3_5_moe_text", "vocab_size": 248320, "hidden_size": 2048,
    "num_hidden_layers": 40, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "num_experts": 256,
    "num_experts_per_tok": 8, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
    "max_position_embeddings": 262144,
}  # fmt: skip
GEMMA3N_E4B = {
    "model_type": "gemma3n_text", "vocab_size": 262400, "hidden_size": 2048,
    "intermediate_size": 16384, "num_hidden_layers": 35, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 256, "num_kv_shared_layers": 15,
    "max_position_embeddings": 32768,
}  # fmt: skip
GEMMA4_E2B = {
    "model_type": "gemma4_text", "vocab_size": 262144, "hidden_size": 1536,
    "intermediate_size": 6144, "num_hidden_layers": 35, "num_attention_heads": 8,
    "num_key_value_heads": 1, "head_dim": 256, "num_kv_shared_layers": 20,
    "use_double_wide_mlp": True, "final_logit_softcapping": 30.0,
    "max_position_embeddings": 131072,
}  # fmt: skip
GEMMA4_26B = {
    "model_type": "gemma4_text", "vocab_size": 262144, "hidden_size": 2816,
    "intermediate_size": 2112, "num_hidden_layers": 30, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 256, "attention_k_eq_v": True,
    "num_global_key_value_heads": 2, "hidden_size_per_layer_input": 0, "enable_moe_block": True,
    "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704, "sliding_window": 1024,
    "final_logit_softcapping": 30.0, "max_position_embeddings": 262144,
}  # fmt: skip
DEEPSEEK_V3_2 = {
    "model_type": "deepseek_v32", "vocab_size": 129280, "hidden_size": 7168,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61,
    "num_attention_heads": 128, "num_key_value_heads": 128, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
    "v_head_dim": 128, "max_position_embeddings": 163840,
}  # fmt: skip
GLM_5 = {
    "model_type": "glm_moe_dsa", "vocab_size": 154880, "hidden_size": 6144,
    "intermediate_size": 12288, "moe_intermediate_size": 2048, "num_hidden_layers": 78,
    "num_attention_heads": 64, "num_key_value_heads": 64, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 1, "topk_group": 1,
    "q_lora_rank": 2048, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 192,
    "v_head_dim": 256, "max_position_embeddings": 202752,
}  # fmt: skip
# What the phantom plays in seconds: every kind of layer is there.
_ALL, _LOCAL = "full_attention", "sliding_attention"
QWEN3_5_SMALL = {
    "model_type": "qwen3_5_text", "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 640,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "linear_key_head_dim": 32, "linear_value_head_dim": 48, "linear_num_key_heads": 4,
    "linear_num_value_heads": 8, "full_attention_interval": 4, "max_position_embeddings": 4096,
}  # fmt: skip
QWEN3_5_MOE_SMALL = {
    "model_type": "qwen3_5_moe_text", "vocab_size": 1024, "hidden_size": 256,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "linear_key_head_dim": 32, "linear_value_head_dim": 48, "linear_num_key_heads": 4,
    "linear_num_value_heads": 8, "full_attention_interval": 4, "max_position_embeddings": 4096,
    "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 96,
}  # fmt: skip
QWEN3_5_MOE_DEFAULTS = {  # heads and experts' widths are those of the configuration class
    "model_type": "qwen3_5_moe_text", "vocab_size": 1024, "hidden_size": 256,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_experts": 8, "num_experts_per_tok": 2,
    "max_position_embeddings": 4096,
}  # fmt: skip
QWEN3_NEXT_SMALL = {
    "model_type": "qwen3_next", "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 640,
    "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
    "linear_key_head_dim": 32, "linear_value_head_dim": 48, "linear_num_key_heads": 4,
    "linear_num_value_heads": 8, "max_position_embeddings": 4096, "num_experts": 8,
    "num_experts_per_tok": 2, "moe_intermediate_size": 128, "shared_expert_intermediate_size": 96,
    "mlp_only_layers": [1],
}  # fmt: skip
GEMMA3N_SMALL = {
    "model_type": "gemma3n_text", "vocab_size": 1024, "vocab_size_per_layer_input": 900,
    "hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 10,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "sliding_window": 128,
    "hidden_size_per_layer_input": 32, "num_kv_shared_layers": 4, "laurel_rank": 16,
    "activation_sparsity_pattern": [0.95, 0.95, 0.95, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    "layer_types": [_LOCAL, _LOCAL, _ALL] * 3 + [_ALL],
}  # fmt: skip
GEMMA4_SMALL = {
    "model_type": "gemma4_text", "vocab_size": 1024, "vocab_size_per_layer_input": 900,
    "hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 8, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "global_head_dim": 128, "sliding_window": 128,
    "hidden_size_per_layer_input": 32, "num_kv_shared_layers": 4, "use_double_wide_mlp": True,
    "layer_types": [_LOCAL, _ALL] * 4,
}  # fmt: skip
GEMMA4_MOE_SMALL = {
    "model_type": "gemma4_text", "vocab_size": 1024, "vocab_size_per_layer_input": 900,
    "hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 8, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "global_head_dim": 128, "sliding_window": 128,
    "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "use_double_wide_mlp": False,
    "layer_types": [_LOCAL, _ALL] * 4,
    "enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 128,
    "attention_k_eq_v": True, "num_global_key_value_heads": 1, "final_logit_softcapping": 30.0,
}  # fmt: skip
DEEPSEEK_V3_2_SMALL = {
    "model_type": "deepseek_v32", "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 640,
    "moe_intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 4, "n_routed_experts": 8, "num_local_experts": 8,
    "num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 4, "topk_group": 2,
    "q_lora_rank": 96, "kv_lora_rank": 64, "qk_rope_head_dim": 32, "qk_nope_head_dim": 64,
    "v_head_dim": 64, "index_topk": 128, "index_n_heads": 4, "index_head_dim": 64,
    "max_position_embeddings": 4096, "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
}  # fmt: skip
GLM_5_SMALL = {
    "model_type": "glm_moe_dsa", "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 640,
    "moe_intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 4, "n_routed_experts": 8, "num_local_experts": 8,
    "num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
    "q_lora_rank": 96, "kv_lora_rank": 64, "qk_rope_head_dim": 32, "qk_nope_head_dim": 64,
    "v_head_dim": 64, "index_topk": 128, "index_n_heads": 4, "index_head_dim": 64,
    "max_position_embeddings": 4096, "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    "indexer_types": ["full", "shared", "full", "shared"],
}  # fmt: skip


def _train(batch: int, length: int, **rest: Any) -> Recipe:
    return Recipe(batch=batch, length=length, **rest)


def _layers(config: dict[str, Any], count: int) -> dict[str, Any]:
    return config | {"num_hidden_layers": count}


CASES = (
    Case("GPT-2", GPT2, _train(8, 1024)),
    Case("GPT-2 in fp32", GPT2, _train(8, 512, precision="fp32"), "l4"),
    Case("OPT-1.3B, checkpoints", OPT_1_3B, _train(4, 2048, checkpointing="full")),
    Case("Pythia-1.4B", PYTHIA_1_4B, _train(4, 2048), "a100-80gb"),
    Case("Llama-3.2-1B", LLAMA_1B, _train(4, 2048)),
    Case("Llama-3.2-1B, by hand", LLAMA_1B, _train(2, 1024, attention="eager", optimizer="sgd")),
    Case("Llama-3.2-1B, fp32", LLAMA_1B, _train(3, 1000, precision="fp32"), "a100-80gb"),
    Case("Llama-3.1-8B", LLAMA_8B, _train(1, 4096), options=LARGE),
    Case("Llama-3.1-8B, checkpoints", LLAMA_8B,
         _train(2, 8192, checkpointing="full"), "a100-80gb", options=LARGE),
    Case("TinyLlama-1.1B", TINYLLAMA, _train(2, 2048), "l4"),
    Case("Mistral-7B, beyond its window", MISTRAL_7B, _train(1, 6000, checkpointing="full")),
    Case("Qwen2.5-0.5B in fp32", QWEN2_0_5B, _train(4, 1024, precision="fp32")),
    Case("Qwen2.5-7B, sgd", QWEN2_7B, _train(1, 2048, optimizer="sgd")),
    Case("Qwen3-0.6B", QWEN3_0_6B, _train(4, 4096)),
    Case("Qwen3-8B, checkpoints", QWEN3_8B,
         _train(2, 4096, checkpointing="full"), "a100-80gb", options=LARGE),
    Case("Gemma-2-2B", GEMMA2_2B, _train(2, 2048), options=LARGE),
    Case("Gemma-3-1B", GEMMA3_1B, _train(4, 2048)),
    Case("Gemma-3-1B, checkpoints", GEMMA3_1B, _train(4, 4096, checkpointing="full"), "a100-80gb"),
    Case("Phi-3-mini", PHI3_MINI, _train(1, 4096)),
    Case("Granite-3-2B", GRANITE_2B, _train(2, 2048)),
    Case("Granite-4-H-Micro", GRANITE_4_H_MICRO, _train(1, 1024)),
    Case("Granite-4-H-Tiny, sgd", GRANITE_4_H_TINY,
         _train(2, 512, optimizer="sgd"), options=LARGE),
    Case("Bamba-9B, checkpoints, sgd", BAMBA_9B,
         _train(1, 1000, checkpointing="full", optimizer="sgd"), options=LARGE),
    Case("Nemotron-H-8B, sgd", NEMOTRON_H_8B, _train(1, 1024, optimizer="sgd"), options=LARGE),
    Case("OLMo-2-7B, checkpoints", OLMO2_7B, _train(4, 4096, checkpointing="full"), options=LARGE),
    Case("SmolLM3-3B", SMOLLM3_3B, _train(1, 4096)),
    Case("Mixtral, 6 layers", _layers(MIXTRAL, 6), _train(2, 2048), options=LARGE),
    Case("Qwen3-30B-A3B, checkpoints", QWEN3_30B,
         _train(2, 4096, checkpointing="full"), options=LARGE),
    Case("Qwen3-30B-A3B, 2 layers, LoRA 16", _layers(QWEN3_30B, 2),
         _train(2, 512, lora=Lora(rank=16, targets=("all-linear",))),
         program="train_recipes.py", options=LARGE),
    Case("DeepSeek-V3, 6 layers", _layers(DEEPSEEK_V3, 6), _train(1, 2048), options=LARGE),
    Case("gpt-oss-20b", GPT_OSS_20B, _train(1, 2048), options=LARGE),
    Case("Llama-4-Scout, 6 layers", _layers(LLAMA4_SCOUT, 6), _train(1, 2048), options=LARGE),
    Case("Qwen3.5, small", QWEN3_5_SMALL, _train(2, 512)),
    Case("Qwen3.5, small, checkpoints", QWEN3_5_SMALL, _train(2, 500, checkpointing="full")),
    Case("Qwen3.5, small, by hand in fp32", QWEN3_5_SMALL,
         _train(1, 512, precision="fp32", attention="eager")),
    Case("Qwen3.5 with experts, small", QWEN3_5_MOE_SMALL, _train(2, 512)),
    Case("Qwen3.5 with experts, sizes by default", QWEN3_5_MOE_DEFAULTS, _train(2, 512)),
    Case("Qwen3-Next, small", QWEN3_NEXT_SMALL, _train(2, 512)),
    Case("Qwen3-Next, small, checkpoints", QWEN3_NEXT_SMALL, _train(2, 500, checkpointing="full")),
    Case("Qwen3-Next, one value head a key head", QWEN3_NEXT_SMALL | {"linear_num_value_heads": 4},
         _train(2, 512)),
    Case("Gemma-3n, small", GEMMA3N_SMALL, _train(2, 512)),
    Case("Gemma-3n, small, checkpoints", GEMMA3N_SMALL, _train(2, 512, checkpointing="full")),
    Case("Gemma-4, small", GEMMA4_SMALL, _train(2, 512)),
    Case("Gemma-4, small, checkpoints", GEMMA4_SMALL, _train(2, 512, checkpointing="full")),
    Case("Gemma-4 with experts, small", GEMMA4_MOE_SMALL, _train(2, 512)),
    Case("DeepSeek-V3.2, small", DEEPSEEK_V3_2_SMALL, _train(2, 512)),
    Case("DeepSeek-V3.2, small, checkpoints", DEEPSEEK_V3_2_SMALL,
         _train(2, 512, checkpointing="full")),
    Case("GLM-5, small", GLM_5_SMALL, _train(2, 512)),
    Case("GLM-5, small, checkpoints", GLM_5_SMALL, _train(2, 512, checkpointing="full")),
    Case("GLM-5, small, two shared in a row, checkpoints",
         GLM_5_SMALL | {"num_hidden_layers": 6, "mlp_layer_types": ["dense"] + ["sparse"] * 5,
                        "indexer_types": ["full", "shared", "shared"] * 2},
         _train(2, 512, checkpointing="full")),
)  # fmt: skip
