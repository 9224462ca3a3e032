"""Fields that published configurations leave out or call otherwise, by model_type.

Serving and training read a configuration after with_defaults, so that a default or another name
stands here alone.

Source: the configuration classes of transformers 5.19 to 5.23, their defaults and attribute_map.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ullage.facts.families.config import Config

_DELTA_NET: Final = {
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}  # fmt: skip
_MAMBA1: Final = {"mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2}
_MIXER: Final = {
    "mamba_n_heads": 128, "mamba_d_state": 256, "mamba_n_groups": 1, "mamba_d_conv": 4,
    "mamba_chunk_size": 256, "mamba_expand": 2,
}  # fmt: skip
_OWN_INPUTS: Final = {
    "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262_144,
    "sliding_window": 512,
}  # fmt: skip
_BERT: Final = {"max_position_embeddings": 512, "type_vocab_size": 2}
_INDEXED: Final = {"index_head_dim": 128, "index_topk": 2048, "first_k_dense_replace": 3}
_DEFAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "gemma3_text": {"num_attention_heads": 8, "vocab_size": 262_208},
    "gemma3n_text": {
        **_OWN_INPUTS, "intermediate_size": 16_384, "num_kv_shared_layers": 15, "laurel_rank": 64,
        "altup_num_inputs": 4,
    },
    "gemma4_text": {
        **_OWN_INPUTS, "intermediate_size": 9216, "num_kv_shared_layers": 0, "global_head_dim": 512,
    },
    "qwen3_next": {**_DELTA_NET, "num_experts": 512, "num_experts_per_tok": 10},
    "qwen3_5_text": _DELTA_NET,
    "qwen3_5_moe_text": {**_DELTA_NET, "num_experts": 256, "num_experts_per_tok": 8},
    "mixtral": {"num_experts_per_tok": 2},
    "qwen3_moe": {"num_experts_per_tok": 8},
    "gpt_oss": {"num_experts_per_tok": 4},
    "glm4_moe_lite": {"first_k_dense_replace": 1},
    "deepseek_v32": {**_INDEXED, "index_n_heads": 64},
    "glm_moe_dsa": {**_INDEXED, "index_n_heads": 32},
    "mamba": _MAMBA1,
    "jamba": {
        **_MAMBA1, "attn_layer_period": 8, "attn_layer_offset": 4, "expert_layer_period": 2,
        "expert_layer_offset": 1, "num_experts": 16,
    },
    "mamba2": {
        **_MIXER, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 8,
        "hidden_size": 4096, "vocab_size": 32768, "num_hidden_layers": 64,
    },
    "granitemoehybrid": {
        **_MIXER, "num_local_experts": 8, "num_experts_per_tok": 2,
        "shared_intermediate_size": 1024, "hidden_size": 4096,
    },
    "bamba": {**_MIXER, "hidden_size": 4096},
    "falcon_h1": _MIXER,
    "nemotron_h": {
        "mamba_n_heads": 128, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 8,
        "mamba_d_conv": 4, "mamba_chunk_size": 128, "mamba_ssm_cache_dtype": "float32",
    },
    "gpt2": {"max_position_embeddings": 1024, "activation_function": "gelu_new"},
    "gpt_neox": {"hidden_act": "gelu"},
    "opt": {"max_position_embeddings": 2048, "activation_function": "relu"},
    "falcon": {"max_position_embeddings": 2048},
    "whisper": {
        "max_source_positions": 1500, "max_target_positions": 448, "num_mel_bins": 80,
    },
    "bart": {"max_position_embeddings": 1024},
    "t5": {"d_kv": 64, "relative_attention_num_buckets": 32, "feed_forward_proj": "relu"},
    "clip_text_model": {
        "hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8,
        "num_hidden_layers": 12, "max_position_embeddings": 77, "vocab_size": 49408,
    },
    "clip_vision_model": {
        "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12,
        "num_hidden_layers": 12, "image_size": 224, "patch_size": 32,
    },
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
}  # fmt: skip

_MAMBA2: Final = {
    "n_groups": "mamba_n_groups", "conv_kernel": "mamba_d_conv", "chunk_size": "mamba_chunk_size",
    "use_bias": "mamba_proj_bias", "use_conv_bias": "mamba_conv_bias",
}  # fmt: skip
_GPT2: Final = {"n_head": "num_attention_heads", "n_layer": "num_hidden_layers"}
_NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "gpt2": {
        **_GPT2, "n_embd": "hidden_size", "n_positions": "max_position_embeddings",
        "n_inner": "intermediate_size",
    },
    "gpt_oss": {"experts_per_token": "num_experts_per_tok"},
    "opt": {"ffn_dim": "intermediate_size"},
    "mamba": {
        "state_size": "mamba_d_state", "conv_kernel": "mamba_d_conv", "expand": "mamba_expand",
        "time_step_rank": "mamba_dt_rank", "intermediate_size": "d_inner",
    },
    "mamba2": {
        **_MAMBA2, "num_heads": "mamba_n_heads", "head_dim": "mamba_d_head",
        "state_size": "mamba_d_state", "expand": "mamba_expand",
    },
    "nemotron_h": {
        **_MAMBA2, "mamba_num_heads": "mamba_n_heads", "mamba_head_dim": "mamba_d_head",
        "ssm_state_size": "mamba_d_state",
    },
    "falcon": {
        **_GPT2, "n_embed": "hidden_size", "n_head_kv": "num_kv_heads",
        "ffn_hidden_size": "intermediate_size",
    },
}  # fmt: skip


def with_defaults(config: Config) -> Config:
    """The configuration under the usual names, with what published ones leave out."""
    names, defaults = _NAMES.get(config.model_type, {}), _DEFAULTS.get(config.model_type, {})
    given = {
        names.get(name, name): value
        for name, value in config.fields.items()
        if value is not None or names.get(name, name) not in defaults
    }
    own = {new: old for old, new in names.items() if old in config.fields}
    return replace(config, fields={**defaults, **given}, names={**config.names, **own})


def clip_part(config: Config, kind: str) -> Config:
    """CLIP's half for text or for vision (kind), of a model of several parts or of its own file."""
    name = f"{kind}_config"
    part = config.part(name) if name in config.fields else config
    return with_defaults(replace(part, fields={**part.fields, "model_type": f"clip_{kind}_model"}))
