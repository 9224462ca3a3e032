"""ViT as in transformers' modeling_vit.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ullage.facts.families.config import Config
from ullage.facts.families.encoders import halves_of
from ullage.players.eager.training.architectures.activations import find_activation
from ullage.players.eager.training.architectures.encoder import Encoder, EncoderShape, Layer
from ullage.players.eager.training.architectures.model import (
    Model,
    images,
    labels,
    parameter_dtype,
    with_side,
)
from ullage.players.eager.training.eager import functional as F
from ullage.players.eager.training.eager.arena import Arena
from ullage.players.eager.training.eager.convolution import Conv
from ullage.players.eager.training.eager.indexing import select
from ullage.players.eager.training.eager.module import LayerNorm, Linear, Module, parameter
from ullage.players.eager.training.eager.tensor import DType, Tensor
from ullage.players.eager.training.recipe import Recipe


class Patches(Module):
    """Turns images into tokens: a convolution over patches, a class token, positions."""

    def __init__(
        self, arena: Arena, config: Config, dtype: DType, *, has_bias: bool = True
    ) -> None:
        hidden, side = config.number("hidden_size"), config.number("image_size", default=224)
        patch = config.number("patch_size", default=16)
        channels = config.number("num_channels", default=3)
        self.cls_token = parameter(arena, 1, 1, hidden, dtype=dtype)
        self.positions = parameter(arena, 1, (side // patch) ** 2 + 1, hidden, dtype=dtype)
        self.projection = Conv(
            arena, channels, hidden, patch, dtype, stride=patch, has_bias=has_bias
        )

    def __call__(self, x: Tensor) -> Tensor:
        x = self.projection(x)
        batch, hidden = x.shape[:2]
        x = F.transpose(F.view(x, (batch, hidden, x.shape[2] * x.shape[3])), 1, 2)
        x = F.cat((F.expand(self.cls_token, (batch, 1, hidden)), x), 1)
        return F.add(x, self.positions)


class ViT(Model):
    """ViTForImageClassification.

    Attributes:
        layer: class of the layers.
    """

    layer: ClassVar[type[Layer]] = Layer

    def __init__(self, arena: Arena, config: Config, recipe: Recipe) -> None:
        dtype = parameter_dtype(recipe)
        hidden = config.number("hidden_size")
        self.side = config.number("image_size", default=224)
        self.dropout = config.real("hidden_dropout_prob", default=0.0)
        self.embeddings = Patches(arena, config, dtype)
        (half,) = halves_of(config)
        shape = EncoderShape(
            hidden,
            half.shape.heads,
            half.width,
            self.dropout,
            config.real("attention_probs_dropout_prob", default=0.0),
            qkv_bias=config.flag("qkv_bias", default=True),
            activation=find_activation(config, "hidden_act", default="gelu"),
        )
        self.encoder = Encoder(arena, half.layers, shape, dtype, self.layer)
        self.layernorm = LayerNorm(arena, hidden, dtype)
        classes = _num_labels(config)
        self.classifier = Linear(arena, hidden, classes, dtype, has_bias=True)
        self.stacks = (self.encoder.layers,)

    def inputs(self, arena: Arena, recipe: Recipe) -> tuple[Tensor, ...]:
        return images(arena, with_side(recipe, self.side)), labels(arena, recipe)

    def __call__(self, *inputs: Tensor) -> Tensor:
        x, targets = inputs
        x = F.dropout(self.embeddings(x), self.dropout)
        x = self.layernorm(self.encoder(x))
        return F.cross_entropy(self.classifier(select(x, 1)), targets)


def _num_labels(config: Config) -> int:
    """The number of classes: the length of id2label if the published file has it."""
    names = config.fields.get("id2label")
    if isinstance(names, Mapping):
        return len(names)
    return int(config.number("num_labels", default=2))
