"""Small models of every kind that the engine is asked about: shapes chosen so that padding shows.

SEEN: looked at while the rules were being written. BLIND: other shapes, of which the prediction
was written down before the engine was first started with them; see docs/results/serving.md.
"""

from typing import Any, Final

__all__ = ["BLIND", "KV_BYTES", "LENGTHS", "LIBRARY_ALONE", "OPTIONS", "SEEN", "runs_of"]

LENGTHS: Final = (4096, 20000)
"""Context lengths: one a multiple of every block size, one of none."""

KV_BYTES: Final = 200_000_000
"""For the KV cache; no multiple of any block."""

_WIDE: Final = {"max_position_embeddings": 131072}


def _model(architecture: str, model_type: str, **fields: Any) -> dict[str, Any]:
    return {"architectures": [architecture], "model_type": model_type, **fields}


def _decoder(architecture: str, model_type: str, **fields: Any) -> dict[str, Any]:
    """What most decoders have, under the names that most of them give it."""
    usual = {
        "vocab_size": 1000, "hidden_size": 256, "intermediate_size": 320, "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 2, "pad_token_id": 0, **_WIDE,
    }  # fmt: skip
    return _model(architecture, model_type, **(usual | fields))


def _layers(pattern: str) -> list[str]:
    """Kinds of layers from their first letters: "ssf" is two sliding ones and a full one."""
    kinds = {
        "s": "sliding_attention", "f": "full_attention", "c": "chunked_attention",
        "l": "linear_attention", "m": "mamba", "a": "attention", "k": "conv",
    }  # fmt: skip
    return [kinds[letter] for letter in pattern]


_LATENT: Final = {
    "num_key_value_heads": 8, "q_lora_rank": 96, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 32, "v_head_dim": 32, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "n_shared_experts": 1, "moe_intermediate_size": 96, "first_k_dense_replace": 1, "n_group": 1,
    "topk_group": 1,
}  # fmt: skip
_DELTA_NET: Final = {
    "head_dim": 64, "linear_num_key_heads": 4, "linear_num_value_heads": 8,
    "linear_key_head_dim": 64, "linear_value_head_dim": 64, "linear_conv_kernel_dim": 4,
}  # fmt: skip
_MAMBA2: Final = {
    "mamba_n_heads": 16, "mamba_d_head": 32, "mamba_n_groups": 2, "mamba_d_state": 64,
    "mamba_d_conv": 4, "mamba_expand": 2,
}  # fmt: skip
_EXPERTS: Final = {"num_local_experts": 8, "num_experts_per_tok": 2}

SEEN: Final = {
    "llama": _decoder("LlamaForCausalLM", "llama"),
    "mistral": _decoder("MistralForCausalLM", "mistral", sliding_window=512, head_dim=32),
    "gpt_oss": _decoder(
        "GptOssForCausalLM", "gpt_oss", head_dim=32, num_hidden_layers=7, sliding_window=128,
        **_EXPERTS,
    ),
    "llama4": _decoder(
        "Llama4ForCausalLM", "llama4_text", num_hidden_layers=8, head_dim=32,
        intermediate_size_mlp=320, attention_chunk_size=1024, interleave_moe_layer_step=2,
        num_local_experts=4, num_experts_per_tok=1,
    ),
    "qwen3_next": _decoder(
        "Qwen3NextForCausalLM", "qwen3_next", num_hidden_layers=8, num_experts=8,
        num_experts_per_tok=2, moe_intermediate_size=96, shared_expert_intermediate_size=96,
        **_DELTA_NET,
    ),
    "granitemoehybrid": _decoder(
        "GraniteMoeHybridForCausalLM", "granitemoehybrid", layer_types=_layers("mmmmamma"),
        num_hidden_layers=8, shared_intermediate_size=192, **_MAMBA2, **_EXPERTS,
    ),
    "falcon_h1": _decoder(
        "FalconH1ForCausalLM", "falcon_h1", num_hidden_layers=6, head_dim=32, mamba_d_ssm=512,
        **_MAMBA2,
    ),
    "nemotron_h": _decoder(
        "NemotronHForCausalLM", "nemotron_h", num_hidden_layers=7, head_dim=32,
        hybrid_override_pattern="M-M*-M*", mamba_num_heads=16, mamba_head_dim=32, n_groups=2,
        ssm_state_size=64, conv_kernel=4, expand=2, chunk_size=64,
    ),
}  # fmt: skip

BLIND: Final = {
    "mixtral": _decoder("MixtralForCausalLM", "mixtral", **_EXPERTS),
    "qwen2": _decoder("Qwen2ForCausalLM", "qwen2", num_hidden_layers=5),
    "qwen2_moe": _decoder(
        "Qwen2MoeForCausalLM", "qwen2_moe", num_experts=8, num_experts_per_tok=2,
        moe_intermediate_size=96, shared_expert_intermediate_size=160,
    ),
    "qwen3": _decoder("Qwen3ForCausalLM", "qwen3", head_dim=64, num_hidden_layers=12),
    "qwen3_moe": _decoder(
        "Qwen3MoeForCausalLM", "qwen3_moe", head_dim=64, num_experts=8, num_experts_per_tok=2,
        moe_intermediate_size=96,
    ),
    "gemma": _decoder("GemmaForCausalLM", "gemma", head_dim=64, num_key_value_heads=1),
    "gemma2": _decoder(
        "Gemma2ForCausalLM", "gemma2", head_dim=64, num_hidden_layers=7, sliding_window=1024,
    ),
    "gemma3": _decoder(
        "Gemma3ForCausalLM", "gemma3_text", head_dim=64, num_hidden_layers=13, sliding_window=512,
    ),
    "phi": _decoder("PhiForCausalLM", "phi", num_key_value_heads=8),
    "phi3": _decoder("Phi3ForCausalLM", "phi3", num_key_value_heads=8),
    "granite": _decoder("GraniteForCausalLM", "granite"),
    "granitemoe": _decoder("GraniteMoeForCausalLM", "granitemoe", **_EXPERTS),
    "olmo2": _decoder("Olmo2ForCausalLM", "olmo2"),
    "olmo3": _decoder("Olmo3ForCausalLM", "olmo3", num_hidden_layers=6, sliding_window=700),
    "cohere2": _decoder(
        "Cohere2ForCausalLM", "cohere2", num_hidden_layers=10, sliding_window=512, head_dim=32,
    ),
    "exaone4": _decoder(
        "Exaone4ForCausalLM", "exaone4", num_hidden_layers=6, sliding_window=512,
        sliding_window_pattern=4, layer_types=_layers("sssfsf"),
    ),
    "smollm3": _decoder("SmolLM3ForCausalLM", "smollm3"),
    "stablelm": _decoder("StableLmForCausalLM", "stablelm"),
    "starcoder2": _decoder("Starcoder2ForCausalLM", "starcoder2"),
    "glm4": _decoder("Glm4ForCausalLM", "glm4", head_dim=32),
    "glm4_moe": _decoder(
        "Glm4MoeForCausalLM", "glm4_moe", head_dim=32, partial_rotary_factor=0.5,
        n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1, moe_intermediate_size=96,
        first_k_dense_replace=1, n_group=1, topk_group=1,
    ),
    "ernie4_5": _decoder("Ernie4_5ForCausalLM", "ernie4_5", head_dim=64),
    "gpt2": _model(
        "GPT2LMHeadModel", "gpt2", vocab_size=1000, n_embd=256, n_layer=3, n_head=4,
        n_positions=32768,
    ),
    "gpt_neox": _decoder("GPTNeoXForCausalLM", "gpt_neox", num_key_value_heads=8),
    "opt": _model(
        "OPTForCausalLM", "opt", vocab_size=1000, hidden_size=256, word_embed_proj_dim=256,
        ffn_dim=512, num_hidden_layers=3, num_attention_heads=4, do_layer_norm_before=True,
        max_position_embeddings=32768,
    ),
    "falcon": _model(
        "FalconForCausalLM", "falcon", vocab_size=1000, hidden_size=256, num_hidden_layers=3,
        num_attention_heads=8, num_kv_heads=2, new_decoder_architecture=True, parallel_attn=True,
        bias=False, alibi=False, multi_query=True, **_WIDE,
    ),
    "deepseek_v2": _decoder("DeepseekV2ForCausalLM", "deepseek_v2", **_LATENT),
    "deepseek_v3": _decoder("DeepseekV3ForCausalLM", "deepseek_v3", **_LATENT),
    "jamba": _decoder(
        "JambaForCausalLM", "jamba", num_hidden_layers=8, attn_layer_period=4, attn_layer_offset=2,
        expert_layer_period=2, expert_layer_offset=1, num_experts=4, num_experts_per_tok=2,
        mamba_d_state=16, mamba_d_conv=4, mamba_expand=2, mamba_dt_rank=16,
    ),
    "mamba": _model(
        "MambaForCausalLM", "mamba", vocab_size=1000, hidden_size=256, state_size=16,
        num_hidden_layers=4, expand=2, conv_kernel=4, intermediate_size=512, time_step_rank=16,
    ),
    "mamba2": _model(
        "Mamba2ForCausalLM", "mamba2", vocab_size=1000, hidden_size=256, state_size=64,
        num_hidden_layers=4, expand=2, conv_kernel=4, num_heads=16, head_dim=32, n_groups=2,
        chunk_size=64,
    ),
    "lfm2": _decoder(
        "Lfm2ForCausalLM", "lfm2", num_hidden_layers=7, layer_types=_layers("kkfkkfk"),
        conv_L_cache=3, conv_dim=256, block_dim=256, block_auto_adjust_ff_dim=False,
    ),
    "whisper": _model(
        "WhisperForConditionalGeneration", "whisper", vocab_size=1000, d_model=256,
        encoder_layers=2, decoder_layers=3, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=512, decoder_ffn_dim=512, num_mel_bins=80, max_source_positions=1500,
        max_target_positions=448, decoder_start_token_id=1, suppress_tokens=[], pad_token_id=0,
        bos_token_id=0, eos_token_id=0,
    ),
    # The same kinds with other shapes: padding, uneven groups, windows of odd lengths.
    "llama-fp8": _decoder("LlamaForCausalLM", "llama", num_hidden_layers=7, head_dim=96),
    "gemma3-wide": _decoder(
        "Gemma3ForCausalLM", "gemma3_text", head_dim=128, num_hidden_layers=26, hidden_size=512,
        num_key_value_heads=4, sliding_window=1111,
    ),
    "gpt_oss-even": _decoder(
        "GptOssForCausalLM", "gpt_oss", head_dim=64, num_hidden_layers=12, sliding_window=128,
        **_EXPERTS,
    ),
    "llama4-odd": _decoder(
        "Llama4ForCausalLM", "llama4_text", num_hidden_layers=11, head_dim=64,
        intermediate_size_mlp=320, attention_chunk_size=3000, interleave_moe_layer_step=1,
        num_local_experts=4, num_experts_per_tok=1,
    ),
    "cohere2-odd": _decoder(
        "Cohere2ForCausalLM", "cohere2", num_hidden_layers=9, sliding_window=2000, head_dim=32,
        layer_types=_layers("ssfssfsss"),
    ),
    "deepseek_v3-low": _decoder(
        "DeepseekV3ForCausalLM", "deepseek_v3", num_hidden_layers=5,
        **(_LATENT | {"kv_lora_rank": 512, "q_lora_rank": None}),
    ),
    "qwen3_next-wide": _decoder(
        "Qwen3NextForCausalLM", "qwen3_next", num_hidden_layers=12, num_experts=8,
        num_experts_per_tok=2, moe_intermediate_size=96, shared_expert_intermediate_size=96,
        **(_DELTA_NET | {"linear_num_value_heads": 16, "head_dim": 32}),
    ),
    "granitemoehybrid-dense": _decoder(
        "GraniteMoeHybridForCausalLM", "granitemoehybrid", layer_types=_layers("mmamamamam"),
        num_hidden_layers=10, shared_intermediate_size=192, num_local_experts=0,
        num_experts_per_tok=0, **(_MAMBA2 | {"mamba_d_state": 96}),
    ),
    "falcon_h1-deep": _decoder(
        "FalconH1ForCausalLM", "falcon_h1", num_hidden_layers=9, head_dim=64, mamba_d_ssm=512,
        **(_MAMBA2 | {"mamba_n_groups": 1}),
    ),
    "nemotron_h-long": _decoder(
        "NemotronHForCausalLM", "nemotron_h", num_hidden_layers=12, head_dim=64,
        hybrid_override_pattern="MM-MM*-MM*-M", mamba_num_heads=16, mamba_head_dim=64, n_groups=4,
        ssm_state_size=48, conv_kernel=4, expand=4, chunk_size=64,
    ),
    "lfm2-even": _decoder(
        "Lfm2ForCausalLM", "lfm2", num_hidden_layers=8, layer_types=_layers("kfkfkfkf"),
        conv_L_cache=4, conv_dim=256, block_dim=256, block_auto_adjust_ff_dim=True,
    ),
}  # fmt: skip

_SPARSE: Final = _LATENT | {
    "kv_lora_rank": 64, "qk_rope_head_dim": 16, "index_head_dim": 32, "index_n_heads": 4,
    "index_topk": 64,
}  # fmt: skip
_PER_LAYER: Final = {
    "head_dim": 32, "vocab_size_per_layer_input": 600, "hidden_size_per_layer_input": 24,
    "num_hidden_layers": 10, "sliding_window": 512,
}  # fmt: skip
_MIXTURE: Final = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96}

LIBRARY_ALONE: Final = {
    "qwen3_5": _decoder(
        "Qwen3_5ForCausalLM", "qwen3_5_text", num_hidden_layers=8, attention_bias=True,
        **_DELTA_NET,
    ),
    "qwen3_5_moe": _decoder(
        "Qwen3_5MoeForCausalLM", "qwen3_5_moe_text", num_hidden_layers=6,
        layer_types=_layers("lfllfl"), shared_expert_intermediate_size=160, **_MIXTURE,
        **_DELTA_NET,
    ),
    "gemma3n": _decoder(
        "Gemma3nForCausalLM", "gemma3n_text", num_kv_shared_layers=5, laurel_rank=16,
        altup_num_inputs=3, **_PER_LAYER,
    ),
    "gemma3n-own": _decoder(
        "Gemma3nForCausalLM", "gemma3n_text", num_kv_shared_layers=0,
        layer_types=_layers("ssfssfssff"),
        intermediate_size=[320] * 4 + [640] * 6, **(_PER_LAYER | {"sliding_window": 700}),
    ),
    "gemma4": _decoder(
        "Gemma4ForCausalLM", "gemma4_text", num_kv_shared_layers=3, use_double_wide_mlp=True,
        layer_types=_layers("sssfsfssff"), global_head_dim=64, **_PER_LAYER,
    ),
    "gemma4-experts": _decoder(
        "Gemma4ForCausalLM", "gemma4_text", attention_k_eq_v=True, num_global_key_value_heads=1,
        global_head_dim=48, enable_moe_block=True, top_k_experts=2, num_experts=8,
        moe_intermediate_size=96, tie_word_embeddings=False,
        **(_PER_LAYER | {"hidden_size_per_layer_input": 0, "num_hidden_layers": 7}),
    ),
    "deepseek_v32": _decoder(
        "DeepseekV32ForCausalLM", "deepseek_v32", attention_bias=True, **_SPARSE
    ),
    "glm_moe_dsa": _decoder(
        "GlmMoeDsaForCausalLM", "glm_moe_dsa", num_hidden_layers=9, index_topk_freq=3, **_SPARSE
    ),
}  # fmt: skip
"""Asked of transformers alone: newer than the vLLM that was asked."""

OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "llama-fp8": {"kv_cache_dtype": "fp8"},
    "gemma3-wide": {"max_num_batched_tokens": 1500},
    "gpt_oss-even": {"block_size": 64, "max_num_batched_tokens": 2048},
    "llama4-odd": {"max_num_batched_tokens": 2500},
    "qwen3_next-wide": {"block_size": 64},
    "falcon_h1-deep": {"block_size": 96},
    "cohere2-odd": {"max_num_batched_tokens": 777, "max_num_seqs": 16},
}
"""What the engine is told beside the length and the prefix cache."""


def runs_of(name: str) -> list[dict[str, Any]]:
    """The options of each start of a model: two lengths, without and with the prefix cache."""
    # Whisper's decoder ends at 448 tokens, and its processor wants a tokenizer.
    is_whisper = name.startswith("whisper")
    lengths = (200, 448) if is_whisper else LENGTHS
    extra = {"tokenizer": True} if is_whisper else {}
    return [
        {
            "max_model_len": length,
            "enable_prefix_caching": has_prefix_caching,
            "kv_cache_memory_bytes": KV_BYTES,
            **extra,
            **OPTIONS.get(name, {}),
        }
        for length in lengths
        for has_prefix_caching in (False, True)
    ]
