"""Decoders as the libraries that people train with write them, where that is not transformers' way.

Each follows the files that its classes name; what they share with Llama of transformers is not
written again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from ullage.facts.families.blocks import Mlp
from ullage.facts.families.config import Config
from ullage.players.eager.training.architectures.decoders import decoder as base
from ullage.players.eager.training.architectures.decoders.gemma import Gemma2, GemmaLayer
from ullage.players.eager.training.architectures.decoders.llama import apart
from ullage.players.eager.training.architectures.losses import (
    chunked_loss,
    language_loss,
    token_loss,
)
from ullage.players.eager.training.architectures.norms import FusedNorm, Norm, WideNorm
from ullage.players.eager.training.architectures.rotary import join_heads, rotate
from ullage.players.eager.training.eager import functional as F
from ullage.players.eager.training.eager.arena import Arena
from ullage.players.eager.training.eager.attention import attend, attend_eagerly
from ullage.players.eager.training.eager.indexing import choose
from ullage.players.eager.training.eager.module import Module
from ullage.players.eager.training.eager.reductions import total
from ullage.players.eager.training.eager.routing import highest
from ullage.players.eager.training.eager.shapes import permuted
from ullage.players.eager.training.eager.tensor import BOOL, FLOAT32, Tensor
from ullage.players.eager.training.recipe import Recipe

_FUSED_NORM_FROM = (2, 9)  # before it F.rms_norm was written in other operators


def _repeat(x: Tensor, times: int) -> Tensor:
    """repeat_kv of (batch, length, heads, head_dim): expanded and copied."""
    if times == 1:
        return x
    batch, length, heads, width = x.shape
    wide = F.expand(
        F.view(x, (batch, length, heads, 1, width)), (batch, length, heads, times, width)
    )
    return F.reshape(wide, (batch, length, heads * times, width))


class TitanAttention(base.Attention):
    """Attention of torchtitan/models/llama/model.py: rotated as complex numbers, in float32."""

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        width = self.head_dim
        query, key = apart(self.q_proj(x), width), apart(self.k_proj(x), width)
        return query, key, apart(self.v_proj(x), width)

    def turn(self, query: Tensor, key: Tensor, context: base.Context) -> tuple[Tensor, Tensor]:
        table = context.tables[self.kind][0]
        table = table.alias((1, table.shape[2], 1, table.shape[3]))
        return self._turn(query, table), self._turn(key, table)

    def _turn(self, x: Tensor, table: Tensor) -> Tensor:
        return F.to(F.mul(F.to(x, FLOAT32), table), x.dtype)

    def __call__(self, x: Tensor, context: base.Context) -> Tensor:
        query, key, value = self.heads(x)
        query, key = self.turn(query, key, context)
        times = query.shape[2] // key.shape[2]
        key, value = _repeat(key, times), _repeat(value, times)
        query, key = F.transpose(query, 1, 2), F.transpose(key, 1, 2)
        value = F.transpose(value, 1, 2)
        return self.o_proj(join_heads(self.attend(query, key, value, context.masks[self.kind])))


class TitanLayer(base.Layer):
    """TransformerBlock."""

    def __init__(self, parts: base.Parts, kind: str, sizes: Mlp) -> None:
        super().__init__(parts, kind, sizes)
        if parts.arena.machine.torch >= _FUSED_NORM_FROM:
            hidden = parts.config.number("hidden_size")
            self.input_layernorm = parts.norm(FusedNorm, hidden)
            self.post_attention_layernorm = parts.norm(FusedNorm, hidden)


class Torchtitan(base.Decoder):
    """Transformer of torchtitan; the loss is of float32 logits, which are gone before backward."""

    layer: ClassVar[type[base.Layer]] = TitanLayer
    attention: ClassVar[type[base.Attention]] = TitanAttention

    def loss(self, x: Tensor, labels: Tensor) -> Tensor:
        if self.parts.recipe.loss_kind != "full":
            return super().loss(x, labels)
        return token_loss(F.to(self.logits(x), FLOAT32), labels)


class TuneAttention(TitanAttention):
    """MultiHeadAttention of torchtune, with the rotation of Llama3ScaledRoPE: pairs of numbers in
    float32. A mask of packed samples keeps flash attention from being taken.
    """

    is_wide: ClassVar[bool] = True

    def _turn(self, x: Tensor, table: Tensor) -> Tensor:
        wide = F.to(x, FLOAT32) if self.is_wide else x
        half = x.shape[-1] // 2
        cos, sin = F.narrow(table, -1, half), F.narrow(table, -1, half)
        first, second = F.narrow(wide, -1, half), F.narrow(wide, -1, half)
        real = F.sub(F.mul(first, cos), F.mul(second, sin))
        imaginary = F.add(F.mul(second, cos), F.mul(first, sin))
        turned = F.cat((real, imaginary), -1)
        return F.to(turned, x.dtype) if self.is_wide else turned


class Torchtune(base.Decoder):
    """TransformerDecoder of torchtune; its loss is CEWithChunkedOutputLoss."""

    attention: ClassVar[type[base.Attention]] = TuneAttention


class LitNorm(Norm):
    """RMSNorm of litgpt/model.py: all in float32."""

    def __call__(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = F.to(x, FLOAT32)
        scaled = F.mul(x, F.rsqrt(F.shift(F.mean(F.mul(x, x)))))
        return F.to(F.mul(scaled, F.to(self.offset(), FLOAT32)), dtype)

    def offset(self) -> Tensor:
        """The factor of the normalized values."""
        return self.weight


class LitAttention(base.Attention):
    """CausalSelfAttention of litgpt: queries, keys and values from one matrix, group by group."""

    # target -> which part of the matrix that is
    adapted: Mapping[str, tuple[str, ...]] = {
        "attn": ("q_proj", "k_proj", "v_proj"),
        "o_proj": ("o_proj",),
    }

    def __init__(self, parts: base.Parts, kind: str = base.FULL) -> None:
        shape = parts.shape
        self.kind = kind
        self.head_dim = shape.head_dim
        self.count, self.groups = shape.heads, shape.kv_heads
        width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        self.attn = parts.linear(shape.hidden, width)
        self.o_proj = parts.linear(shape.heads * shape.head_dim, shape.hidden)

    def adapted_rows(self, target: str) -> int:
        """Rows of the merged matrix that a target has."""
        return self.head_dim * (self.count if target == "q_proj" else self.groups)

    def __call__(self, x: Tensor, context: base.Context) -> Tensor:
        batch, length = x.shape[:2]
        joined = self.attn(x)
        per_group = self.count // self.groups
        grouped = F.view(joined, (batch, length, self.groups, per_group + 2, self.head_dim))
        query, key, value = F.split(grouped, (per_group, 1, 1), 3)
        del joined, grouped
        query, key, value = (self._head(part) for part in (query, key, value))
        table = context.tables[self.kind]
        query, key = self._turn(query, table), self._turn(key, table)
        out = self.attend(query, key, value, None)
        return self.o_proj(join_heads(out))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        return attend(query, key, value, mask)

    def _head(self, x: Tensor) -> Tensor:
        """(batch, heads, length, head_dim); keys and values are repeated."""
        batch, length, groups, count, width = x.shape
        shape = (batch, groups, length, width)
        if self.count == self.groups:
            return F.transpose(F.view(x, (batch, length, groups, width)), 1, 2)
        if count > 1:
            return F.contiguous(permuted(x, (batch, groups * count, length, width)))
        times = self.count // groups
        wide = F.expand(F.view(x, (*shape[:2], 1, *shape[2:])), (*shape[:2], times, *shape[2:]))
        return F.contiguous(F.view(wide, (batch, self.count, length, width)))

    def _turn(self, x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
        """Rotated, and joined to the elements that are not, of which there are none."""
        return F.cat((F.to(rotate(x, table), x.dtype), F.narrow(x, -1, 0)), -1)


_LIT_TOKENS = 128  # of a chunk of the head, and of the loss


class LitGPT(base.Decoder):
    """GPT of litgpt. Adapters are trained with a head that is computed 128 tokens at a time, and
    the logits stay until there are new ones.
    """

    attention: ClassVar[type[base.Attention]] = LitAttention
    norm_kind: ClassVar[type[Norm]] = LitNorm
    has_masks = False

    def __init__(self, arena: Arena, config: Config, recipe: Recipe) -> None:
        """Embedding and head are two, be they alike in the published file."""
        fields = {**config.fields, "tie_word_embeddings": False}
        super().__init__(arena, replace(config, fields=fields), recipe)

    def loss(self, x: Tensor, labels: Tensor) -> Tensor:
        if self.parts.recipe.loss_kind != "full":
            return super().loss(x, labels)
        if self.parts.recipe.lora is not None:
            holder: list[Tensor] = []
            x.arena.held = holder
            return chunked_loss(
                self._wide, x, labels, size=_LIT_TOKENS, dtype=FLOAT32, holder=holder
            )
        logits = self._wide(x)
        x.arena.held = [logits]
        batch, length, vocab = logits.shape
        shifted = F.narrow(logits, 1, length - 1)
        flat = F.reshape(F.contiguous(shifted), (batch * (length - 1), vocab))
        rows = batch * (length - 1)
        sizes = [_LIT_TOKENS] * (rows // _LIT_TOKENS) + [rows % _LIT_TOKENS] * bool(
            rows % _LIT_TOKENS
        )
        losses = [
            F.cross_entropy(part, labels.alias((part.shape[0],)))
            for part in F.split(flat, sizes, 0)
        ]
        total = losses[0]
        for loss in losses[1:]:
            total = F.add(total, loss)
        return total

    def _wide(self, x: Tensor) -> Tensor:
        """The logits, which Fabric gives back in torch's default dtype."""
        return F.to(self.logits(x), FLOAT32)


class LitGemmaAttention(LitAttention):
    """Scores are bounded, which sdpa does not know how to do (do_softcapping)."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        mask = query.like((1, 1, query.shape[2], query.shape[2]))
        return attend_eagerly(query, key, value, mask, has_cap=True)


class LitGemmaNorm(LitNorm):
    """RMSNorm with add_unit_offset: the weight is one more."""

    def offset(self) -> Tensor:
        return F.shift(self.weight)


class LitGemma2(LitGPT, Gemma2):
    """GPT of litgpt at 04205815 (litgpt/model.py) as Gemma 2 is configured."""

    layer: ClassVar[type[base.Layer]] = GemmaLayer
    attention: ClassVar[type[base.Attention]] = LitGemmaAttention
    norm_kind: ClassVar[type[Norm]] = LitGemmaNorm


class PlainAttention(TuneAttention):
    """Attention by hand as courses write it: scores, torch.where, a softmax of exp, sum and a
    division, each of which is a tensor.
    """

    is_wide = False

    def __init__(self, parts: base.Parts, kind: str = base.FULL) -> None:
        super().__init__(parts, kind)
        self.is_written_out = parts.is_eager

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        if not self.is_written_out:
            return attend(query, key, value)
        scores = F.scale(F.matmul(query, key, is_second_transposed=True))
        scores = choose(scores.like((1, 1, *scores.shape[2:]), BOOL), scores)
        numerator = F.sub(scores, highest(scores, 1)[0])
        numerator = F.elementwise(numerator, saves_input=False, saves_output=True)
        del scores
        weights = F.div(numerator, total(numerator))
        del numerator
        out = F.matmul(weights, value)
        return F.transpose(F.contiguous(F.transpose(out, 1, 2)), 1, 2)


def _written_silu(x: Tensor) -> Tensor:
    """x * torch.sigmoid(x)."""
    return F.mul(x, F.elementwise(x, saves_input=False, saves_output=True))


class PlainMLP(base.GatedMLP):
    """SwiGLU, its silu written out."""

    def __init__(self, parts: base.Parts, inner: int) -> None:
        super().__init__(parts, inner)
        self.act = _written_silu


class Plain(base.Decoder):
    """A decoder in plain operators of PyTorch, as in the course CS336."""

    attention: ClassVar[type[base.Attention]] = PlainAttention
    mlp: ClassVar[type[Module]] = PlainMLP
    has_masks = False
    norm_kind: ClassVar[type[Norm]] = WideNorm

    def loss(self, x: Tensor, labels: Tensor) -> Tensor:
        kind = self.parts.recipe.loss_kind
        if kind != "full":
            return language_loss(self.logits, self.lm_head.weight, x, labels, kind)
        return token_loss(self.logits(x), labels)
