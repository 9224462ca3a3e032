"""CLIP as in transformers' modeling_clip.py: images and texts, with a contrastive loss."""

from __future__ import annotations

from ullage.facts.families.config import Config
from ullage.facts.families.defaults import clip_part
from ullage.facts.families.encoders import halves_of
from ullage.log.category import Category
from ullage.players.eager.training.architectures.encoder import Encoder, EncoderShape, gelu
from ullage.players.eager.training.architectures.losses import contrast, unit_length
from ullage.players.eager.training.architectures.masks import eager_mask
from ullage.players.eager.training.architectures.model import (
    Model,
    ids,
    images,
    parameter_dtype,
    with_side,
)
from ullage.players.eager.training.eager import functional as F
from ullage.players.eager.training.eager.arena import Arena
from ullage.players.eager.training.eager.convolution import Conv
from ullage.players.eager.training.eager.indexing import rows, select
from ullage.players.eager.training.eager.module import (
    Embedding,
    LayerNorm,
    Linear,
    Module,
    parameter,
)
from ullage.players.eager.training.eager.tensor import INT64, DType, Tensor, empty
from ullage.players.eager.training.recipe import Recipe


def quick_gelu(x: Tensor) -> Tensor:
    """x * sigmoid(1.702 x), in three kernels."""
    return F.mul(x, F.elementwise(F.scale(x), saves_input=False, saves_output=True))


def _shape_of(config: Config) -> EncoderShape:
    kind = config.text("hidden_act", default="quick_gelu")
    if kind not in ("quick_gelu", "gelu"):
        raise config.wrong("hidden_act", f"found {kind!r}, expected 'quick_gelu' or 'gelu'")
    (half,) = halves_of(config)
    return EncoderShape(
        half.shape.hidden,
        half.shape.heads,
        half.width,
        attention_dropout=config.real("attention_dropout", default=0.0),
        activation=gelu if kind == "gelu" else quick_gelu,
    )


class Vision(Module):
    """CLIPVisionModel; its output is that of the class token."""

    def __init__(self, arena: Arena, config: Config, dtype: DType) -> None:
        hidden = config.number("hidden_size")
        self.side, patch = config.number("image_size"), config.number("patch_size")
        count = (self.side // patch) ** 2 + 1
        self.class_embedding = parameter(arena, hidden, dtype=dtype)
        self.patches = Conv(arena, 3, hidden, patch, dtype, stride=patch, has_bias=False)
        self.positions = Embedding(arena, count, hidden, dtype)
        self.numbers = empty(arena, (1, count), INT64, Category.BUFFER)
        self.before = LayerNorm(arena, hidden, dtype)
        layers = config.number("num_hidden_layers")
        self.encoder = Encoder(arena, layers, _shape_of(config), dtype)
        self.after = LayerNorm(arena, hidden, dtype)

    def __call__(self, x: Tensor) -> Tensor:
        x = self.encoder(self.before(self._embed(x)))
        return self.after(select(x, 1))

    def _embed(self, x: Tensor) -> Tensor:
        patches = self.patches(x)
        batch, hidden = patches.shape[:2]
        flat = F.view(patches, (batch, hidden, patches.shape[2] * patches.shape[3]))
        token = F.expand(self.class_embedding, (batch, 1, hidden))
        embeds = F.cat((token, F.transpose(flat, 1, 2)), 1)
        return F.add(embeds, self.positions(self.numbers))


class Text(Module):
    """CLIPTextModel; its output is that of the last token."""

    def __init__(self, arena: Arena, config: Config, dtype: DType) -> None:
        hidden = config.number("hidden_size")
        self.longest = config.number("max_position_embeddings")
        self.tokens = Embedding(arena, config.number("vocab_size"), hidden, dtype)
        self.positions = Embedding(arena, self.longest, hidden, dtype)
        self.numbers = empty(arena, (1, self.longest), INT64, Category.BUFFER)
        layers = config.number("num_hidden_layers")
        self.encoder = Encoder(arena, layers, _shape_of(config), dtype)
        self.after = LayerNorm(arena, hidden, dtype)

    def __call__(self, tokens: Tensor) -> Tensor:
        embeds = self.tokens(tokens)
        x = F.add(embeds, self.positions(self.numbers.alias((1, tokens.shape[1]))))
        del embeds
        x = self.after(self.encoder(x, eager_mask(x)))
        batch, length, hidden = x.shape
        flat = F.view(x, (batch * length, hidden))
        return rows(flat, empty(x.arena, (batch,), INT64))


class Clip(Model):
    """CLIPModel with its loss."""

    def __init__(self, arena: Arena, config: Config, recipe: Recipe) -> None:
        dtype = parameter_dtype(recipe)
        text, vision = clip_part(config, "text"), clip_part(config, "vision")
        shared = config.number("projection_dim", default=512)
        self.logit_scale = parameter(arena, dtype=dtype)
        self.text = Text(arena, text, dtype)
        self.vision = Vision(arena, vision, dtype)
        self.visual_projection = Linear(arena, vision.number("hidden_size"), shared, dtype)
        self.text_projection = Linear(arena, text.number("hidden_size"), shared, dtype)
        self.stacks = (self.text.encoder.layers, self.vision.encoder.layers)

    def inputs(self, arena: Arena, recipe: Recipe) -> tuple[Tensor, ...]:
        recipe = with_side(recipe, self.vision.side)
        tokens = ids(arena, recipe, self.text.longest)
        return images(arena, recipe), tokens

    def __call__(self, *inputs: Tensor) -> Tensor:
        pictures, tokens = inputs
        picture_vectors = self.visual_projection(self.vision(pictures))
        read = self.text_projection(self.text(tokens))
        scale = F.elementwise(self.logit_scale, saves_input=False, saves_output=True)
        return contrast(unit_length(picture_vectors), F.mul(unit_length(read), scale))
