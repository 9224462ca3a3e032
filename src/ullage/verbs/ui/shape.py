"""The depth and the width of a model, as two numbers that the page can change.

    shape = read_shape(config)                 # depth 32, width 4096 in steps of 512
    reshape(config, depth=16, width=2048)      # half as many layers, half as wide

A wider model has more heads, each as wide as before, and its inner layers grow along, as families
of models are scaled. Nothing else of the configuration is touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any, Final, TypeGuard

from ullage.facts.families.config import Config
from ullage.ground.errors import SpecError

_DEPTHS: Final = (
    "num_hidden_layers", "n_layer", "num_layers", "encoder_layers", "decoder_layers",
    "num_decoder_layers",
)  # fmt: skip
_WIDTHS: Final = ("hidden_size", "n_embd", "d_model", "dim")
_HEADS: Final = (
    "num_attention_heads", "n_head", "num_heads", "n_heads", "encoder_attention_heads",
    "decoder_attention_heads",
)  # fmt: skip
_KV_HEADS: Final = ("num_key_value_heads",)
_INNER: Final = (
    "intermediate_size", "n_inner", "d_ff", "hidden_dim", "encoder_ffn_dim", "decoder_ffn_dim",
    "moe_intermediate_size", "shared_expert_intermediate_size",
)  # fmt: skip
_EXPERTS: Final = ("num_local_experts", "num_experts", "n_routed_experts")
_INSIDE: Final = "text_config"
_INNER_MULTIPLE: Final = 8
_IMAGES: Final = ("image_size", "sample_size", "patch_size", "architecture", "_class_name")


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model that can be changed.

    Attributes:
        depth: layers; None where they are not one number.
        width: of the residual stream; None where it cannot be scaled.
        width_step: widths are multiples of this.
        reads_tokens: a sample has a length.
        sees_images: a sample has a side in pixels.
        longest: tokens that the model was made for, where it says so.
        has_experts: some of its layers choose among experts.
    """

    depth: int | None
    width: int | None
    width_step: int | None
    reads_tokens: bool
    sees_images: bool
    longest: int | None
    has_experts: bool


def read_shape(config: Config) -> Shape:
    """The sizes that can be changed on a model of this configuration."""
    fields = _inside(config.fields)
    depths = [fields[name] for name in _DEPTHS if _is_count(fields.get(name))]
    widths = [fields[name] for name in _WIDTHS if _is_count(fields.get(name))]
    units = _num_units(fields)
    has_width = bool(widths and units and widths[0] % units == 0)
    longest = fields.get("max_position_embeddings", fields.get("n_positions"))
    return Shape(
        depth=depths[0] if depths else None,
        width=widths[0] if has_width else None,
        width_step=widths[0] // units if has_width else None,
        reads_tokens=_is_count(fields.get("vocab_size")),
        sees_images=any(name in config.fields for name in _IMAGES),
        longest=longest if _is_count(longest) else None,
        has_experts=any(_is_count(fields.get(name)) and fields[name] > 1 for name in _EXPERTS),
    )


def reshape(config: Config, *, depth: int | None = None, width: int | None = None) -> Config:
    """The configuration with another depth or width; None: unchanged.

    Raises:
        SpecError: it has no such number, or the width is not one of its steps.
    """
    shape = read_shape(config)
    fields = dict(_inside(config.fields))
    if depth is not None and depth != shape.depth:
        if shape.depth is None:
            raise SpecError(f"depth: found {depth}, but {config.name} has no number of layers")
        _set_depth(fields, shape.depth, depth)
    if width is not None and width != shape.width:
        _set_width(fields, shape, width, config.name)
    if _INSIDE in config.fields:
        fields = {**config.fields, _INSIDE: fields}
    return Config(config.name, fields)


def _set_depth(fields: dict[str, Any], before: int, after: int) -> None:
    """Extends lists with an entry for each layer by repeating their pattern."""
    if after < 1:
        raise SpecError(f"depth: found {after}, expected at least 1")
    for name, value in fields.items():
        if name in _DEPTHS and _is_count(value):
            fields[name] = max(1, round(value * after / before))
        elif isinstance(value, list | tuple) and len(value) == before:
            fields[name] = [value[index % before] for index in range(after)]


def _set_width(fields: dict[str, Any], shape: Shape, after: int, name: str) -> None:
    before, step = shape.width, shape.width_step
    if before is None or step is None:
        raise SpecError(f"width: found {after}, but {name} has no width that can be scaled")
    if after < step or after % step:
        raise SpecError(f"width: found {after}, expected a multiple of {step} for {name}")
    for field, value in fields.items():
        if not _is_count(value) or (field in _KV_HEADS and value == 1):
            continue
        scaled = value * after // before
        if field in _INNER:
            fields[field] = max(1, scaled // _INNER_MULTIPLE) * _INNER_MULTIPLE
        elif field in _WIDTHS + _HEADS + _KV_HEADS:
            fields[field] = scaled


def _num_units(fields: Mapping[str, Any]) -> int:
    """The largest number of equal parts that all heads can be split into."""
    counts = [fields[name] for name in _HEADS if _is_count(fields.get(name))]
    counts += [
        fields[name] for name in _KV_HEADS if _is_count(fields.get(name)) and fields[name] > 1
    ]
    return gcd(*counts)


def _inside(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = fields.get(_INSIDE)
    return inner if isinstance(inner, Mapping) else fields


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
