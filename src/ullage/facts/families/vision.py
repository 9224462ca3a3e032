"""The part of a model of text and images that reads images, as in LLaVA: CLIP and a projector.

read_vision(read_config("path/to/llava"), hidden=4096)      # () where it is another one

Source: transformers 5.23, models/clip and models/llava.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ullage.facts.families.config import Config
from ullage.facts.families.defaults import clip_part
from ullage.facts.families.layers import Part, Uncounted, Weight

VISION_FIELD: Final = "vision_config"
_CLIP: Final = "clip_vision_model"
_WRAPPERS: Final = ("llava", "llava_next")


def read_vision(config: Config, hidden: int) -> tuple[Weight, ...]:
    """Weights of CLIP's encoder and of the two layers that lead to the text's vectors.

    Counts: attention, MLP and norms of the layers, patches, positions, the projector.
    Ignores: layers beyond vision_feature_layer, which vLLM does not load (one of 24).
    Error: LLaVA 1.6 of 7 billion parameters: 0.60 GiB where a start of vLLM prints 0.59.
    Source: transformers 5.23, models/clip/modeling_clip.py.

    Args:
        config: the whole configuration.
        hidden: elements of the text part's vectors.
    """
    if config.model_type not in _WRAPPERS or not config.has(VISION_FIELD):
        return ()
    if config.part(VISION_FIELD).text("model_type", default=_CLIP) != _CLIP:
        return ()
    vision = clip_part(config, "vision")
    wide, inner = vision.number("hidden_size", least=1), vision.number("intermediate_size")
    layers, patch = vision.number("num_hidden_layers"), vision.number("patch_size", least=1)
    positions = (vision.number("image_size") // patch) ** 2 + 1
    layer = 4 * wide * (wide + 1) + 2 * wide * inner + inner + wide + 4 * wide
    fixed = 3 * patch * patch * wide + (positions + 1) * wide + 4 * wide
    projector = wide * hidden + hidden + hidden * hidden + hidden
    return (
        Weight(Part.VISION, layer, count=layers, most_shards=1),
        Weight(Part.VISION, fixed + projector, most_shards=1),
    )


def bound_part(config: Config, name: str, hidden: int) -> Uncounted:
    """Bounds of the parameters of a tower of transformer layers, by its sizes: assumed.

    Counts: likely: four matrices of attention and two of an MLP in each layer. Most: three of an
    MLP, and four mergers of 2 x 2 tokens, as Qwen3-VL has.
    Error: of seven towers transformers' number is between the two (tests/unit/models).
    Source: transformers 5.23, models/internvl, models/qwen3_vl.
    """
    if not isinstance(config.fields[name], Mapping):
        return Uncounted(name)
    part = config.part(name)
    wide = part.number("embed_dim", "hidden_size", "d_model", default=None)
    layers = part.number("num_hidden_layers", "depth", "encoder_layers", default=None)
    if wide is None or layers is None:
        return Uncounted(name)
    inner = part.number("intermediate_size", "encoder_ffn_dim", default=None)
    inner = int(wide * part.real("mlp_ratio", default=4)) if inner is None else inner
    layer = 4 * wide * wide + 2 * wide * inner
    merger = 4 * wide * (4 * wide + hidden) + hidden * hidden
    return Uncounted(name, layers * layer, layers * (layer + wide * inner) + 4 * merger)
