"""What a configuration says of a model's layers and weights, for serving.

model = read_model(read_config("path/to/model"))
model.layers[0]         # Attention(heads=32, kv_heads=8, head_dim=128, ...)
model.parameters        # 8030261248
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches
from typing import Final

from ullage.errors import SpecError
from ullage.models.config import Config
from ullage.models.decoders import STYLES, read_decoder
from ullage.models.encoders import ENCODERS
from ullage.models.gemma3n import GEMMAS, read_gemma
from ullage.models.hybrids import HYBRIDS
from ullage.models.latents import LATENT_TYPES, read_latent
from ullage.models.layers import Layer, Model
from ullage.models.older_decoders import OLDER_DECODERS
from ullage.models.qwen3_next import DELTA_NETS, read_delta_net
from ullage.models.vision import VISION_FIELD, bound_part, read_vision

# Models of several parts: the model_type of a text_config that does not state its own.
_WRAPPED: Final = {
    "gemma3": "gemma3_text",
    "llama4": "llama4_text",
    "mistral3": "mistral",
    "llava": "llama",
    "cohere2_vision": "cohere2",
    "kimi_vl": "deepseek_v3",
    "kimi_k25": "kimi_k2",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
}

_NO_PARTS: Final = ("quant", "compression", "generation")  # what such fields say is no module

_READERS: Final[dict[str, Callable[[Config, str], Model]]] = {
    **dict.fromkeys(STYLES, read_decoder), **dict.fromkeys(LATENT_TYPES, read_latent),
    **dict.fromkeys(DELTA_NETS, read_delta_net), **dict.fromkeys(GEMMAS, read_gemma),
    **OLDER_DECODERS, **ENCODERS, **HYBRIDS,
}  # fmt: skip
MODEL_TYPES: Final = tuple(sorted(_READERS))
"""Every model_type that can be read, without those of models of several parts."""


def read_model(config: Config) -> Model:
    """What a model keeps and weighs.

    Of a model of several parts, the text part is read, and CLIP's part for images; `uncounted`
    has the others.

    Raises:
        SpecError: the model_type is not known, a field is missing, or fields contradict each other.
    """
    model_type = config.model_type
    if config.has("text_config") and model_type not in MODEL_TYPES:
        text = config.part("text_config")
        inner = text.text("model_type", default=_WRAPPED.get(model_type))
        if inner is None:
            raise text.wrong("model_type", "it is missing; add the model_type of the text part")
        others = sorted(
            name for name in config.fields if name.endswith("_config") and name != "text_config"
        )
        others = [name for name in others if not any(word in name for word in _NO_PARTS)]
        fields = {"tie_word_embeddings": config.fields.get("tie_word_embeddings"), **text.fields}
        fields = {
            name: value
            for name, value in fields.items()
            if value is not None or name in text.fields
        }
        model = _read(replace(text, fields=fields), inner)
        images = read_vision(config, model.hidden)
        if images:
            others.remove(VISION_FIELD)
        uncounted = tuple(bound_part(config, name, model.hidden) for name in others)
        return replace(model, uncounted=uncounted, weights=(*model.weights, *images))
    return _read(config, model_type)


def _read(config: Config, model_type: str) -> Model:
    if model_type in _READERS:
        return _READERS[model_type](config, model_type)
    near = get_close_matches(model_type, MODEL_TYPES, n=3)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise SpecError(
        f"{config.name}: field {config.inside + 'model_type'!r}: found {model_type!r}, which "
        f"is not known for serving{hint} Known: {', '.join(MODEL_TYPES)}"
    )


def read_layers(config: Config) -> tuple[Layer, ...]:
    """What each layer of a model keeps; see read_model."""
    return read_model(config).layers
