"""DeepSeek-V3 and its kin: latent attention, first dense layers, then experts of which one is
shared, as transformers' modeling_deepseek_v3.py has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from ullage.facts.families.blocks import Mlp
from ullage.facts.families.latents import Indexer as IndexerSizes
from ullage.facts.families.latents import find_indexer
from ullage.log.category import Category
from ullage.players.eager.training.architectures.decoders import decoder as base
from ullage.players.eager.training.architectures.decoders.experts import GATED, Experts, Mixture
from ullage.players.eager.training.architectures.norms import RMSNorm
from ullage.players.eager.training.architectures.rotary import (
    Table,
    join_heads,
    rotate,
    split_heads,
)
from ullage.players.eager.training.eager import functional as F
from ullage.players.eager.training.eager.module import LayerNorm, Module, parameter
from ullage.players.eager.training.eager.routing import fill_parts, highest
from ullage.players.eager.training.eager.tensor import BOOL, FLOAT32, INT32, INT64, Tensor, empty

CHOSEN = "tokens that an indexer has chosen"


class LatentAttention(base.Attention):
    """DeepseekV3Attention: keys and values come from a short vector; part of a head is rotated."""

    def __init__(self, parts: base.Parts, kind: str = base.FULL) -> None:
        config = parts.config
        hidden, heads = config.number("hidden_size"), config.number("num_attention_heads")
        rank, kv_rank = config.number("q_lora_rank", default=None), config.number("kv_lora_rank")
        self.is_interleaved = config.flag("rope_interleave", default=True)
        self.rotated = config.number("qk_rope_head_dim")
        self.plain = config.number("qk_nope_head_dim")
        self.value_dim = config.number("v_head_dim")
        self.kv_rank = kv_rank
        self.set_options(parts, kind, self.plain + self.rotated)
        has_bias = config.flag("attention_bias", default=False)
        self.is_short = rank is not None
        if rank is None:
            self.q_proj = parts.linear(hidden, heads * self.head_dim)
        else:
            self.q_a_proj = parts.linear(hidden, rank, has_bias=has_bias)
            self.q_a_layernorm = parts.norm(RMSNorm, rank)
            self.q_b_proj = parts.linear(rank, heads * self.head_dim)
        self.kv_a_proj_with_mqa = parts.linear(hidden, kv_rank + self.rotated, has_bias=has_bias)
        self.kv_a_layernorm = parts.norm(RMSNorm, kv_rank)
        self.kv_b_proj = parts.linear(kv_rank, heads * (self.plain + self.value_dim))
        self.o_proj = parts.linear(heads * self.value_dim, hidden, has_bias=has_bias)

    def __call__(self, x: Tensor, context: base.Context) -> Tensor:
        turn = rotate_pairs if self.is_interleaved else rotate
        table = context.tables[self.kind]
        batch, length, _ = x.shape
        query, low = self.query(x)
        query = split_heads(query, self.head_dim)
        plain, rotated = F.split(query, (self.plain, self.rotated))
        compressed = self.kv_a_proj_with_mqa(x)
        short, shared = F.split(compressed, (self.kv_rank, self.rotated))
        short = self.kv_a_layernorm(short)
        shared = F.view(shared, (batch, 1, length, self.rotated))
        rotated, shared = turn(rotated, table), turn(shared, table)
        query = F.cat((plain, rotated), -1)
        key, value = self.expand(short, shared)
        mask, *_ = variables = self.see(x, low, context)
        out = self.attend(query, key, value, mask)
        del variables
        return self.o_proj(join_heads(out))

    def query(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(batch, length, heads * head_dim), and what it is made from."""
        if self.is_short:
            low = self.q_a_layernorm(self.q_a_proj(x))
            return self.q_b_proj(low), low
        return self.q_proj(x), x

    def see(self, x: Tensor, low: Tensor, context: base.Context) -> tuple[Tensor | None, ...]:
        """The mask, and what a variable holds beside it."""
        del x, low
        return (context.masks[self.kind],)

    def expand(self, short: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
        """All heads' keys and values, from the short vector and the rotated part they share."""
        joined = split_heads(self.kv_b_proj(short), self.plain + self.value_dim)
        plain, value = F.split(joined, (self.plain, self.value_dim))
        shared = F.expand(shared, (*plain.shape[:-1], self.rotated))
        return fill_parts((plain, shared)), value


def rotate_pairs(x: Tensor, table: Table) -> Tensor:
    """apply_rotary_pos_emb_interleave, of one: each even element with the odd one after it."""
    half = x.shape[-1] // 2
    cos, sin = (part.alias((*part.shape[:-1], half), is_dense=False) for part in table)
    even, odd = F.narrow(x, -1, half), F.narrow(x, -1, half)
    first = F.add(F.mul(even, cos), F.mul(odd, sin))
    second = F.add(F.mul(odd, cos), F.mul(even, sin))
    return F.cat((first, second), -1)


class GroupRouter(Module):
    """DeepseekV3TopkRouter: in float32; experts of the best groups alone can be chosen."""

    def __init__(self, parts: base.Parts, count: int, chosen: int) -> None:
        config = parts.config
        self.chosen = chosen
        self.groups = config.number("n_group", default=8, least=1)
        self.normalizes = config.flag("norm_topk_prob", default=True)
        if count % self.groups:
            raise config.wrong("n_group", f"found {self.groups}, expected a divisor of {count}")
        hidden = config.number("hidden_size")
        self.weight = parameter(parts.arena, count, hidden, dtype=parts.dtype)
        self.correction = [empty(parts.arena, (count,), FLOAT32, Category.BUFFER)]

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and numbers of the experts of each token, (tokens, chosen) each."""
        logits = F.linear(F.to(F.view(x, x.shape), FLOAT32), F.to(self.tensor("weight"), FLOAT32))
        scores = F.elementwise(logits, saves_input=False, saves_output=True)
        with x.arena.recording(is_on=False):
            allowed = [scores.like() for _ in range(3)]
        weights, numbers = highest(scores, self.chosen)
        del allowed
        return F.scale(weights), numbers


class SharedMixture(Mixture):
    """DeepseekV3MoE: every token goes through one more expert."""

    def __init__(self, parts: base.Parts, sizes: Mlp) -> None:
        router = GroupRouter(parts, sizes.experts, parts.config.number("num_experts_per_tok"))
        super().__init__(router, Experts(parts, sizes.experts, sizes.width), GATED)
        self.shared_experts = base.GatedMLP(parts, sizes.shared)

    def __call__(self, x: Tensor) -> Tensor:
        shape = x.shape
        weights, numbers = self.gate(F.view(x, (shape[0] * shape[1], shape[2])))
        flat = F.view(x, (shape[0] * shape[1], shape[2]))
        routed = F.view(self.experts(flat, weights, numbers), shape)
        return F.add(routed, self.shared_experts(x))


class DeepseekV3(base.Decoder):
    """DeepseekV3ForCausalLM, without the layers that predict further tokens."""

    attention: ClassVar[type[base.Attention]] = LatentAttention
    mixture: ClassVar[type[Module]] = SharedMixture

    @property
    def rotated(self) -> int:
        width: int = self.parts.config.number("qk_rope_head_dim")
        return width


class Indexer(Module):
    """DeepseekV32Indexer: chooses the tokens that attention sees, and learns nothing itself.

    Its keys are copied for each query, which its product with the queries takes most for.
    """

    def __init__(self, parts: base.Parts, sizes: IndexerSizes, *, is_interleaved: bool) -> None:
        config = parts.config
        hidden, rank = config.number("hidden_size"), config.number("q_lora_rank")
        self.sizes, self.rotated = sizes, config.number("qk_rope_head_dim")
        self.turn = rotate_pairs if is_interleaved else rotate
        self.wq_b = parts.linear(rank, sizes.heads * sizes.width)
        self.wk = parts.linear(hidden, sizes.width)
        self.k_norm = LayerNorm(parts.arena, sizes.width, parts.dtype)
        self.weights_proj = parts.linear(hidden, sizes.heads)

    def __call__(self, x: Tensor, low: Tensor, table: Table) -> Tensor:
        """The numbers of the chosen tokens, (batch, length, count)."""
        batch, length, _ = x.shape
        heads, width = self.sizes.heads, self.sizes.width
        cos, sin = (part.alias((1, length, 1, self.rotated)) for part in table)
        across = cos, sin
        widths = self.rotated, width - self.rotated
        query = F.split(F.view(self.wq_b(low), (batch, length, heads, width)), widths)
        key = F.split(F.view(self.k_norm(self.wk(x)), (batch, length, 1, width)), widths)
        turned = self.turn(query[0], across), self.turn(key[0], across)
        whole = F.cat((turned[0], query[1]), -1), F.cat((turned[1], key[1]), -1)
        scores = self._score(*whole)
        scores = F.scale(scores)
        scores = F.elementwise(scores)
        weights = F.scale(F.to(self.weights_proj(x), FLOAT32))
        weights = F.view(weights, (batch, length, 1, heads))
        chosen = F.view(F.matmul(weights, scores), (batch, length, length))
        unseen = None if x.arena.is_attention_eager else chosen.like(dtype=BOOL)
        chosen = chosen.like()
        del unseen
        numbers = highest(chosen, min(self.sizes.most, length))[1]
        return numbers.like(dtype=INT32)

    def _score(self, query: Tensor, key: Tensor) -> Tensor:
        """(batch, length, heads, length), in float32."""
        batch, length, _, width = query.shape
        query, key = F.to(query, FLOAT32), F.to(key, FLOAT32)
        copied = key.like((batch, length, width, length))
        return F.matmul(query, copied)


class IndexedAttention(LatentAttention):
    """DeepseekV32Attention and GlmMoeDsaAttention."""

    def __init__(self, parts: base.Parts, kind: str, *, has_indexer: bool) -> None:
        super().__init__(parts, kind)
        sizes = find_indexer(parts.config)
        self.indexer = None
        if has_indexer and sizes is not None:
            is_interleaved = parts.config.model_type == "glm_moe_dsa"
            self.indexer = Indexer(parts, sizes, is_interleaved=is_interleaved)

    def see(self, x: Tensor, low: Tensor, context: base.Context) -> tuple[Tensor | None, ...]:
        if self.indexer is not None:
            with x.arena.recording(is_on=False):
                chosen = self.indexer(x, low, context.tables[self.kind])
            context.stored[CHOSEN] = chosen, chosen
        chosen, _ = context.stored[CHOSEN]
        mask = context.masks[self.kind]
        batch, length, _ = x.shape
        every = x.like((batch, length, length), BOOL)
        numbers = chosen.like(dtype=INT64)
        unseen = every.like()
        del every, numbers
        if self.is_eager:
            return None if mask is None else mask.like((batch, 1, length, length)), unseen
        negated = unseen.like()
        joined = negated.like((batch, 1, length, length))
        del negated
        return joined, unseen


class ChosenContext(base.Context):
    """A context in which layers pass on the tokens that the last indexer has chosen."""

    def passed(self) -> ChosenContext:
        """As a layer's checkpoint keeps it, whatever later layers choose."""
        return replace(self, stored=dict(self.stored))


class IndexedLayer(base.Layer):
    """DeepseekV32DecoderLayer."""

    def __init__(self, parts: base.Parts, kind: str, sizes: Mlp, has_indexer: bool) -> None:  # noqa: FBT001
        self.has_indexer = has_indexer
        self.is_shared = parts.config.model_type == "glm_moe_dsa"
        super().__init__(parts, kind, sizes)

    def add_mixer(self, parts: base.Parts, kind: str) -> None:
        self.self_attn = IndexedAttention(parts, kind, has_indexer=self.has_indexer)

    def __call__(self, x: Tensor, context: base.Context) -> Tensor:
        before = dict(context.stored)  # an argument of the layer
        try:
            x = super().__call__(x, context)
        except Exception:  # what is made again ends early, and leaves nothing
            context.stored.clear()
            context.stored.update(before)
            raise
        if not self.is_shared:
            context.stored.clear()
        return x


class Indexed(DeepseekV3):
    """DeepseekV32ForCausalLM and GlmMoeDsaForCausalLM: an indexer, which gets no gradient, chooses
    the tokens that attention sees.
    """

    layer: ClassVar[type[base.Layer]] = IndexedLayer

    @property
    def unseen(self) -> Sequence[Module]:
        layers = [layer.self_attn.indexer for layer in self.layers.layers]
        return [indexer for indexer in layers if indexer is not None]

    def plan(self, place: int) -> tuple[Any, ...]:
        sizes = find_indexer(self.parts.config)
        return *super().plan(place), sizes is not None and sizes.layers[place]

    def context(self, x: Tensor, positions: Tensor | None = None) -> ChosenContext:
        context = super().context(x, positions)
        return ChosenContext(context.tables, context.masks, context.positions)

    def window(self, kind: str) -> int:
        """There is a mask in any case, which the indexer reads."""
        return 0
