"""What is read of every model_type stays what it was: every field, layer and weight.

all_types.json has several configurations of each type (all fields, as few as can be, and three
ways to say which layers see a window) and what was read of them. To record it again:
`python -m tests.unit.models.test_all_types`. test_read_model.py and test_vllm_vectors.py compare
weights and layers with transformers and vLLM.
"""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from tests.rows import each

from ullage.facts.families.architecture import MODEL_TYPES, read_model
from ullage.facts.families.builtin import load_models
from ullage.facts.families.config import Config
from ullage.facts.families.decoders import STYLES
from ullage.facts.families.encoders import ENCODERS
from ullage.facts.families.layers import Weight
from ullage.ground.errors import SpecError
from ullage.players.eager.training.architectures import MODELS, build_model
from ullage.players.eager.training.eager.arena import Arena
from ullage.players.eager.training.recipe import Recipe

FILE: Final = Path(__file__).parent / "all_types.json"
_LAYERS: Final = 13
# Fields of all types; each reads those that it knows.
_FIELDS: Final[dict[str, Any]] = {
    "hidden_size": 256, "d_model": 256, "n_embd": 256, "num_hidden_layers": _LAYERS,
    "n_layer": 3, "encoder_layers": 3, "decoder_layers": 4, "num_layers": 3,
    "num_decoder_layers": 4, "num_attention_heads": 8, "n_head": 8, "num_heads": 16,
    "encoder_attention_heads": 8, "decoder_attention_heads": 4, "num_key_value_heads": 2,
    "d_kv": 48, "head_dim": 32, "vocab_size": 1000, "intermediate_size": 320,
    "ffn_dim": 640, "d_ff": 640, "encoder_ffn_dim": 320, "decoder_ffn_dim": 384,
    "max_position_embeddings": 2048, "n_positions": 512, "max_target_positions": 100,
    "max_source_positions": 200, "sliding_window": 512, "attention_bias": True, "mlp_bias": True,
    "tie_word_embeddings": False, "num_experts": 8, "num_local_experts": 8,
    "n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 2,
    "moe_intermediate_size": 96, "shared_expert_intermediate_size": 128,
    "shared_intermediate_size": 160, "intermediate_size_mlp": 448, "first_k_dense_replace": 2,
    "interleave_moe_layer_step": 2, "attention_chunk_size": 256, "kv_lora_rank": 64,
    "q_lora_rank": 96, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 24,
    "n_group": 2, "mamba_n_heads": 16, "mamba_d_head": 32, "mamba_d_state": 16,
    "mamba_num_heads": 16, "mamba_head_dim": 32, "ssm_state_size": 16, "state_size": 16,
    "n_groups": 2, "mamba_n_groups": 2, "mamba_expand": 2, "expand": 2,
    "mamba_rms_norm": True, "moe_shared_expert_intermediate_size": 128,
    "layers_block_type": [("mamba", "attention", "mamba", "moe")[place % 4] for place in range(8)],
    "hybrid_override_pattern": "M-M*ME", "attn_layer_indices": [2, 5, 9], "conv_kernel": 4,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32,
    "linear_value_head_dim": 48, "use_qk_norm": True, "qk_layernorm": True, "num_mel_bins": 80,
    "type_vocab_size": 3, "word_embed_proj_dim": 128, "new_decoder_architecture": True,
    "num_kv_heads": 4, "use_bias": True, "use_qkv_bias": True, "n_inner": 512,
}  # fmt: skip
_OWN: Final[dict[str, dict[str, Any]]] = {
    "granitemoehybrid": {"layer_types": ["mamba", "mamba", "attention"] * 4 + ["mamba"]},
    "lfm2": {"layer_types": ["conv", "conv", "full_attention"] * 4 + ["conv"]},
    "qwen2": {"use_sliding_window": True, "max_window_layers": 5},
    "mamba2": {"num_heads": 16},
}


def described(config: Config) -> list[str]:
    """Every field of a model, each run of equal layers and each weight a line."""
    model = read_model(config)
    runs = [(layer, len([*group])) for layer, group in groupby(model.layers)]
    return [
        (
            f"{model.model_type} hidden={model.hidden} vocab={model.vocab} widest={model.widest} "
            f"top_experts={model.top_experts} context={model.context} uncounted={model.uncounted}"
        ),
        *(f"{count} {layer}" for layer, count in runs),
        *map(_describe_weight, model.weights),
    ]


def _describe_weight(weight: Weight) -> str:
    shape = f"{weight.part.value} {weight.out} {weight.into} {weight.count}"
    return f"{shape} linear={weight.is_linear} shards={weight.most_shards}"


def _windows(name: str, fields: dict[str, Any]) -> list[dict[str, Any]]:
    """The fields with layer_types, without a window, and with a pattern of layers."""
    if name not in STYLES:
        return []
    kinds = ["sliding_attention", "full_attention"]
    local = [kinds[place % 3 == 2] for place in range(_LAYERS)]
    return [
        fields | {"layer_types": local},
        fields | {"sliding_window": None},
        fields | {"sliding_window_pattern": 3, "no_rope_layer_interval": 5},
    ]


def _record() -> None:
    rows: dict[str, Any] = {}
    for name in MODEL_TYPES:
        fields = {"model_type": name, **_FIELDS, **_OWN.get(name, {})}
        if name == "mamba2":
            fields["head_dim"] = 32
        bare = dict(fields)
        for field in sorted(fields.keys() - {"model_type"}):
            fewer = {key: value for key, value in bare.items() if key != field}
            try:
                read_model(Config(name, fewer))
            except SpecError:
                continue
            bare = fewer
        configs = [fields, bare, *_windows(name, fields)]
        rows[name] = [{"config": each, "model": described(Config(name, each))} for each in configs]
    for name, built_in in load_models().items():
        if built_in.config.model_type in MODEL_TYPES:
            rows[f"built in: {name}"] = [{"model": described(built_in.config)}]
    FILE.write_text(json.dumps(rows, indent=1) + "\n")


ROWS: Final = json.loads(FILE.read_text()) if FILE.exists() else {}


@each("name", ROWS)
def test_every_field_is_as_it_was_recorded(name: str) -> None:
    for row in ROWS[name]:
        if "config" in row:
            config = Config(name, row["config"])
        else:
            config = load_models()[name.removeprefix("built in: ")].config
        assert described(config) == row["model"]


# Fields of other models' that this one's reader for serving would read.
_FOREIGN: Final = {"qwen3_moe": "shared_expert_intermediate_size"}


# Not models with an encoder, whose heads serving leaves out; nor two of which a row cannot be
# trained: Nemotron-H's contradicts itself, and Bamba's smallest has no heads.
_DECODERS: Final = set(MODEL_TYPES) & set(MODELS) - {*ENCODERS, "nemotron_h", "bamba"}


@each("name", sorted(_DECODERS))
def test_training_builds_the_parameters_that_serving_counts(name: str) -> None:
    for row in ROWS[name]:
        fields = {
            field: value for field, value in row["config"].items() if field != _FOREIGN.get(name)
        }
        config = Config(name, fields)
        built = build_model(Arena(), config, Recipe(length=1))
        sizes = {id(tensor): tensor.numel * count for tensor, count in built.parameters()}
        assert sum(sizes.values()) == read_model(config).parameters


def test_all_types_are_recorded() -> None:
    assert set(MODEL_TYPES) <= set(ROWS)


if __name__ == "__main__":
    _record()
