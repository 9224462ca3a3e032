"""A model's layers and weights by its configuration, for serving.

model = read_model(read_config("path/to/model"))
model.layers[0]         # Attention(heads=32, kv_heads=8, head_dim=128, ...)
model.parameters        # 8030261248
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from difflib import get_close_matches
from typing import Final

from ullage.facts.families.config import Config
from ullage.facts.families.decoders import LATENT_TYPES, STYLES, read_decoder
from ullage.facts.families.defaults import with_defaults
from ullage.facts.families.encoders import ENCODERS
from ullage.facts.families.gemma3n import read_gemma3n
from ullage.facts.families.gemma4 import read_gemma4
from ullage.facts.families.hybrids import HYBRIDS, read_hybrid
from ullage.facts.families.latents import read_latent
from ullage.facts.families.layers import Layer, Model
from ullage.facts.families.vision import VISION_FIELD, bound_part, read_vision

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

_READERS: Final[dict[str, Callable[[Config], Model]]] = {
    **dict.fromkeys(STYLES, read_decoder), **dict.fromkeys(LATENT_TYPES, read_latent),
    **dict.fromkeys(HYBRIDS, read_hybrid), **ENCODERS,
    "gemma3n_text": read_gemma3n, "gemma4_text": read_gemma4,
}  # fmt: skip
MODEL_TYPES: Final = tuple(sorted(_READERS))
"""Every model_type that can be read, without those of models of several parts."""


def read_model(config: Config) -> Model:
    """Reads what a model keeps and weighs.

    Of a model of several parts, the text part is read, and CLIP's part for images; `uncounted`
    has the others.

    Raises:
        SpecError: the model_type is not known, a field is missing, or fields contradict each other.
    """
    text = text_part(config, MODEL_TYPES)
    model_type = text.model_type
    if model_type not in _READERS:
        near = get_close_matches(model_type, MODEL_TYPES, n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise text.wrong(
            "model_type",
            f"found {model_type!r}, which is not known for serving{hint} "
            f"Known: {', '.join(MODEL_TYPES)}",
        )
    model = _READERS[model_type](text)
    if text.inside == config.inside:
        return model
    images, others = read_vision(config, model.hidden), other_parts(config)
    if images:
        others.remove(VISION_FIELD)
    uncounted = tuple(bound_part(config, name, model.hidden) for name in others)
    return replace(model, uncounted=uncounted, weights=(*model.weights, *images))


def text_part(config: Config, known: Collection[str]) -> Config:
    """The text part of a model of several parts, if the model_type is not known by itself; with
    the defaults of its family.

    Raises:
        SpecError: the part says no model_type, and none is usual.
    """
    if config.model_type in known or not config.has("text_config"):
        return with_defaults(config)
    text = config.part("text_config")
    kind = text.text("model_type", default=_WRAPPED.get(config.model_type))
    if kind is None:
        raise text.wrong("model_type", "it is missing; add the model_type of the text part")
    tied = config.fields.get("tie_word_embeddings")
    fields = {} if tied is None else {"tie_word_embeddings": tied}
    return with_defaults(replace(text, fields={**fields, **text.fields, "model_type": kind}))


def other_parts(config: Config) -> list[str]:
    """The fields of the parts beside the text part."""
    return sorted(
        name
        for name in config.fields
        if name.endswith("_config")
        and name != "text_config"
        and not any(word in name for word in _NO_PARTS)
    )


def read_layers(config: Config) -> tuple[Layer, ...]:
    """Reads what each layer of a model keeps; see read_model."""
    return read_model(config).layers
