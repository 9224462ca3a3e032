"""Gemma 3n (text), as transformers' modeling_gemma3n.py has it: layers that read another's keys,
an embedding for each layer, and several inputs of a layer (AltUp).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from ullage.facts.families.blocks import Mlp
from ullage.facts.families.config import Config
from ullage.facts.families.gemma3n import SharingLayer, describe_gemma3n
from ullage.players.eager.training.architectures.decoders import decoder as base
from ullage.players.eager.training.architectures.decoders.gemma import Gemma3, GemmaLayer
from ullage.players.eager.training.architectures.decoders.llama import apart
from ullage.players.eager.training.architectures.norms import Norm
from ullage.players.eager.training.architectures.rotary import join_heads, rotate
from ullage.players.eager.training.eager import functional as F
from ullage.players.eager.training.eager.arena import Arena
from ullage.players.eager.training.eager.indexing import select, stack
from ullage.players.eager.training.eager.module import Embedding, Module, parameter
from ullage.players.eager.training.eager.routing import clamp, fill, repeat_rows
from ullage.players.eager.training.eager.shapes import permuted, view_any
from ullage.players.eager.training.eager.tensor import FLOAT32, Tensor
from ullage.players.eager.training.recipe import Recipe


def root_mean(x: Tensor) -> Tensor:
    """x * mean(x ** 2) ** -0.5, of the last dimension, in float32."""
    wide = F.to(x, FLOAT32)
    return F.mul(wide, F.pow2(F.shift(F.mean(F.pow2(wide)))))


def plain_norm(x: Tensor) -> Tensor:
    """Gemma3nRMSNorm without a weight."""
    return F.to(root_mean(x), x.dtype)


class PowerNorm(Norm):
    """Gemma3nRMSNorm: all in float32."""

    def __call__(self, x: Tensor) -> Tensor:
        return F.to(F.mul(root_mean(x), F.to(self.weight, FLOAT32)), x.dtype)


class SharingAttention(base.Attention):
    """Gemma3nTextAttention and Gemma4TextAttention: it reads a layer's keys and values, or leaves
    its own to those behind it.
    """

    def __init__(self, parts: base.Parts, layer: SharingLayer) -> None:
        config, shape = parts.config, layer.shape
        self.layer = layer
        self.set_options(parts, layer.kind, shape.head_dim)
        width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        has_bias = config.flag("attention_bias", default=False)
        self.q_proj = parts.linear(shape.hidden, width, has_bias=has_bias)
        self.q_norm = parts.norm(PowerNorm, shape.head_dim)
        if layer.num_kv:
            self.k_norm = parts.norm(PowerNorm, shape.head_dim)
            self.k_proj = parts.linear(shape.hidden, kv_width, has_bias=has_bias)
        if layer.num_kv > 1:
            self.v_proj = parts.linear(shape.hidden, kv_width, has_bias=has_bias)
        self.o_proj = parts.linear(width, shape.hidden, has_bias=has_bias)

    def __call__(self, x: Tensor, context: base.Context) -> Tensor:
        cos, sin = context.tables[self.kind]
        shape = (1, cos.shape[2], 1, cos.shape[3])
        table = cos.alias(shape), sin.alias(shape)
        query = self.q_norm(apart(self.q_proj(x), self.head_dim))
        query = F.transpose(rotate(query, table), 1, 2)
        if self.layer.num_kv:
            key = apart(self.k_proj(x), self.head_dim)
            value = key
            key = F.transpose(rotate(self.k_norm(key), table), 1, 2)
            if self.layer.num_kv > 1:
                value = apart(self.v_proj(x), self.head_dim)
            value = F.transpose(plain_norm(value), 1, 2)
        else:
            key, value = context.stored[self.kind]
        if self.layer.is_stored:
            context.stored[self.kind] = key, value
        out = join_heads(self.attend(query, key, value, context.masks[self.kind]))
        return self.o_proj(out)


class SparseMLP(base.GatedMLP):
    """Gemma3nTextMLP: of some layers only gates far above the mean count."""

    def __init__(self, parts: base.Parts, inner: int, *, is_sparse: bool) -> None:
        super().__init__(parts, inner)
        self.is_sparse = is_sparse

    def __call__(self, x: Tensor) -> Tensor:
        gate = self.gate_proj(x)
        if self.is_sparse:
            gate = _far_above_the_mean(gate)
        activations = self.act(gate)
        up = self.up_proj(x)
        return self.down_proj(F.mul(activations, up))


def _far_above_the_mean(x: Tensor) -> Tensor:
    """_gaussian_topk."""
    mean = F.mean(x)
    deviation = F.scale(F.deviation(x))
    cutoff = F.add(mean, deviation)
    return F.elementwise(F.sub(x, cutoff), saves_input=False, saves_output=True)


class AltUp(Module):
    """Gemma3nTextAltUp: a layer runs on one of its inputs; others are predicted, then corrected."""

    def __init__(self, parts: base.Parts) -> None:
        config = parts.config
        hidden = config.number("hidden_size")
        self.count = count = config.number("altup_num_inputs")
        self.bounds = 2 * (config.real("altup_coef_clip", default=120.0) is not None)
        self.is_scaled = config.flag("altup_correct_scale", default=True)
        self.correct_output_scale = parameter(parts.arena, hidden, dtype=parts.dtype)
        self.correction_coefs = parts.linear(count, count)
        self.prediction_coefs = parts.linear(count, count * count)
        self.modality_router = parts.linear(hidden, count)
        self.router_norm = parts.norm(PowerNorm, hidden)

    def route(self, x: Tensor) -> Tensor:
        """compute_router_modalities: (batch, length, inputs)."""
        routed = self.modality_router(F.scale(self.router_norm(x)))
        bounded = F.elementwise(F.to(routed, FLOAT32), saves_input=False, saves_output=True)
        return F.to(bounded, x.dtype)

    def predict(self, x: Tensor) -> Tensor:
        """The predictions of all inputs (inputs, batch, length, hidden)."""
        inputs, batch, length, hidden = x.shape
        modalities = self.route(select(x, 0))
        weights = view_any(self.prediction_coefs(modalities), (batch, length, inputs, inputs))
        apart = view_any(x, (batch, length, hidden, inputs))
        out = permuted(F.matmul(apart, weights), x.shape)
        fill(out, x, x.shape)  # a view takes the sum
        return F.contiguous(out)

    def correct(self, predictions: Tensor, activated: Tensor) -> Tensor:
        """The predictions, after the layer has run on the active one."""
        modalities = self.route(activated)
        innovation = F.sub(activated, select(predictions, 0))
        innovation = repeat_rows(view_any(innovation, (1, *innovation.shape)), self.count)
        weight = self.correction_coefs.weight
        if self.bounds:
            weight = clamp(weight, num_bounds=self.bounds)
        weights = F.shift(F.linear(modalities, weight))
        weights = view_any(weights, (self.count, *activated.shape[:2], 1))
        return F.add(F.mul(innovation, weights), predictions, in_place=True)

    def scale(self, x: Tensor) -> Tensor:
        """scale_corrected_output."""
        return F.mul(x, self.correct_output_scale) if self.is_scaled else x


class Laurel(Module):
    """Gemma3nTextLaurelBlock."""

    def __init__(self, parts: base.Parts) -> None:
        hidden = parts.config.number("hidden_size")
        rank = parts.config.number("laurel_rank")
        self.linear_left = parts.linear(hidden, rank)
        self.linear_right = parts.linear(rank, hidden)
        self.post_laurel_norm = parts.norm(PowerNorm, hidden)

    def __call__(self, x: Tensor) -> Tensor:
        narrow = self.linear_right(self.linear_left(x))
        normed = self.post_laurel_norm(narrow)
        return F.add(x, normed)


class OwnInputLayer(GemmaLayer):
    """A layer of Gemma 3n and 4, with a narrow input of its own."""

    def __init__(self, parts: base.Parts, kind: str, sizes: Mlp, layer: SharingLayer) -> None:
        self.layer = layer
        super().__init__(parts, kind, sizes)
        hidden = parts.config.number("hidden_size")
        wide = parts.config.number("hidden_size_per_layer_input")
        if wide:
            self.per_layer_input_gate = parts.linear(hidden, wide)
            self.per_layer_projection = parts.linear(wide, hidden)
            self.post_per_layer_input_norm = parts.norm(PowerNorm, hidden)

    def add_mixer(self, parts: base.Parts, kind: str) -> None:
        self.self_attn = SharingAttention(parts, self.layer)

    def own_input(self, x: Tensor, own: Tensor) -> Tensor:
        """The states that the layer's own embedding makes of hidden states."""
        x = F.elementwise(self.per_layer_input_gate(x))
        x = F.mul(x, own)
        x = self.per_layer_projection(x)
        return self.post_per_layer_input_norm(x)


class Gemma3nLayer(OwnInputLayer):
    """Gemma3nTextDecoderLayer."""

    def __init__(
        self,
        parts: base.Parts,
        kind: str,
        sizes: Mlp,
        layer: SharingLayer,
        is_sparse: bool,  # noqa: FBT001
    ) -> None:
        self.is_sparse = is_sparse
        super().__init__(parts, kind, sizes, layer)
        self.altup = AltUp(parts)
        self.laurel = Laurel(parts)

    def make_mlp(self, parts: base.Parts, sizes: Mlp) -> Module:
        return SparseMLP(parts, sizes.width, is_sparse=self.is_sparse)

    def __call__(self, x: Tensor, context: base.Context) -> Tensor:
        if context.own_inputs is None:
            raise AssertionError("Gemma 3n has an input for each layer")
        own = select(context.own_inputs, 2)
        predictions = self.altup.predict(x)
        active = select(predictions, 0)
        normed = self.input_layernorm(active)
        laurel = self.laurel(normed)
        attended = self.self_attn(normed, context)
        attended = self.post_attention_layernorm(attended)
        gated = F.add(active, attended)
        both = F.scale(F.add(gated, laurel))
        out = self.pre_feedforward_layernorm(both)
        out = self.mlp(out)
        normed_out = self.post_feedforward_layernorm(out)
        activated = F.add(both, normed_out)
        corrected = self.altup.correct(predictions, activated)
        first = F.clone(select(corrected, 0))
        first = self.altup.scale(first)
        first = self.own_input(first, own)
        add_to_rest(corrected, first)
        return corrected


def add_to_rest(x: Tensor, part: Tensor) -> None:
    """x[1:] += part: the sum in place, and then a copy of it to where it is."""
    rest = (x.shape[0] - 1, *x.shape[1:])
    fill(x, part, rest)
    fill(x, F.narrow(x, 0, rest[0]))


class SharingDecoder(Gemma3):
    """A decoder of Gemma 3n and 4: each layer has an embedding of its own."""

    norm_kind: ClassVar[type[Norm]] = PowerNorm

    @property
    def described(self) -> tuple[SharingLayer, ...]:
        """The layers."""
        raise NotImplementedError

    def __init__(self, arena: Arena, config: Config, recipe: Recipe) -> None:
        super().__init__(arena, config, recipe)
        parts, hidden = self.parts, config.number("hidden_size")
        self.own_width = wide = config.number("hidden_size_per_layer_input")
        if not wide:
            return
        rows = config.number("vocab_size_per_layer_input")
        columns = len(self.kinds) * wide
        self.embed_tokens_per_layer = Embedding(parts.arena, rows, columns, parts.dtype)
        self.per_layer_model_projection = parts.linear(hidden, columns)
        self.per_layer_projection_norm = parts.norm(PowerNorm, wide)

    def own_inputs(self, tokens: Tensor, words: Tensor) -> Tensor:
        """(batch, length, layers, width)."""
        shape = (*tokens.shape, len(self.kinds), self.own_width)
        looked_up = F.view(F.scale(self.embed_tokens_per_layer(tokens.like())), shape)
        projected = F.view(F.scale_in_place(self.per_layer_model_projection(words)), shape)
        projected = self.per_layer_projection_norm(projected)
        return F.scale(F.add(projected, looked_up))

    def layer_kinds(self) -> list[str]:
        return [layer.kind for layer in self.described]

    def plan(self, place: int) -> tuple[Any, ...]:
        layer = self.described[place]
        return layer.kind, layer.sizes, layer

    @property
    def paces(self) -> dict[str, int]:
        return {layer.kind: layer.shape.head_dim for layer in self.described}

    def begin(self, tokens: Tensor) -> tuple[Tensor, base.Context]:
        """Tokens as vectors, and what all layers share."""
        words = self.embed(tokens)
        own = self.own_inputs(tokens, words) if self.own_width else None
        return words, replace(self.context(words), own_inputs=own)


class Gemma3n(SharingDecoder):
    """Gemma3nForCausalLM."""

    layer: ClassVar[type[base.Layer]] = Gemma3nLayer
    cap: float | None = 30.0

    def __init__(self, arena: Arena, config: Config, recipe: Recipe) -> None:
        super().__init__(arena, config, recipe)
        hidden, count = config.number("hidden_size"), config.number("altup_num_inputs")
        self.altup_projections, self.altup_unembed_projections = (
            [self.parts.linear(hidden, hidden) for _ in range(1, count)] for _ in range(2)
        )

    @property
    def described(self) -> tuple[SharingLayer, ...]:
        return describe_gemma3n(self.parts.config)

    def plan(self, place: int) -> tuple[Any, ...]:
        count = len(self.kinds)
        usual = [0.95 if count > 10 and each < 10 else 0.0 for each in range(count)]
        pattern = self.parts.config.row("activation_sparsity_pattern", default=usual)
        return *super().plan(place), pattern[place] > 0

    def hidden(self, tokens: Tensor) -> Tensor:
        words, context = self.begin(tokens)
        target = _magnitude(words)
        inputs = [words]
        inputs += [_as_large(project(words), target) for project in self.altup_projections]
        x = self.layers(stack(inputs), context)
        target = _magnitude(select(x, 0))
        inputs = [select(x, 0)]
        inputs += [
            _as_large(project(select(x, 0)), target) for project in self.altup_unembed_projections
        ]
        x = stack(inputs)
        x = F.view(F.mean(x, 0), words.shape)
        return self.norm(x)


def _magnitude(x: Tensor) -> Tensor:
    return F.pow2(F.mean(F.pow2(x)))


def _as_large(x: Tensor, target: Tensor) -> Tensor:
    """x, as large as the target: the root of its mean square."""
    size = clamp(F.mean(F.pow2(x)), num_bounds=1)
    size = F.elementwise(size, saves_input=False, saves_output=True, num_temporaries=1)
    return F.div(F.mul(x, target), size)
