"""GPT of Megatron-LM, of which a rank of a tensor-parallel group has a part of each layer.

As in megatron/core: tokens come first, (length, batch, width); projections into heads and into
the MLP are divided by columns, those out of them by rows, the vocabulary by words. What is summed
over ranks is summed in place. Attention is Transformer Engine's, or by hand ("eager"): the fused
softmax, its dropout and both results stay. Source: core/transformer/dot_product_attention.py,
core/tensor_parallel/layers.py and cross_entropy.py, core/models/gpt/gpt_model.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from ullage.facts.families.config import Config
from ullage.facts.families.decoders import attention_shape, find_style
from ullage.players.eager.training.architectures.decoders.gpt import check_length
from ullage.players.eager.training.architectures.model import LanguageModel, parameter_dtype
from ullage.players.eager.training.eager import functional as F
from ullage.players.eager.training.eager import module as nn
from ullage.players.eager.training.eager.arena import Arena
from ullage.players.eager.training.eager.attention import attend
from ullage.players.eager.training.eager.autograd import Gradients, connect, keep, record
from ullage.players.eager.training.eager.parallel.stages import Incoming
from ullage.players.eager.training.eager.shapes import view_any
from ullage.players.eager.training.eager.tensor import BOOL, FLOAT32, INT64, DType, Tensor
from ullage.players.eager.training.recipe import Recipe

_PADDED_TO = 128  # --make-vocab-size-divisible-by


class Attention(nn.Module):
    """SelfAttention: queries, keys and values of this rank's heads."""

    def __init__(self, arena: Arena, config: Config, recipe: Recipe, dtype: DType) -> None:
        shape, ranks = attention_shape(config), recipe.layout.tensor
        hidden, self.heads, self.head_dim = shape.hidden, shape.heads // ranks, shape.head_dim
        self.parts = ranks if recipe.layout.sequence else 1
        self.is_eager = recipe.attention == "eager"
        self.dropout = config.real("attn_pdrop", default=0.1)
        self.qkv = nn.Linear(arena, hidden, 3 * hidden // ranks, dtype, has_bias=True)
        self.proj = nn.Linear(arena, hidden // ranks, hidden, dtype, has_bias=True)

    def __call__(self, x: Tensor) -> Tensor:
        joined = _by_columns(x, self.qkv.weight, self.qkv.bias, self.parts)
        length, batch, _ = joined.shape
        width = self.heads * self.head_dim
        parts = F.split(joined, (width, width, width))
        del joined
        query, key, value = (self._head(part) for part in parts)
        if not self.is_eager:
            out = attend(query, key, value, dropout=self.dropout)
            out = F.contiguous(view_any(out, (length, batch, width)))
            return _scatter(F.linear(out, self.proj.weight), self.parts)
        scores = F.matmul(query, key, is_second_transposed=True)
        weights = _softmax_in_place(scores)
        del scores
        out = F.matmul(F.dropout(weights, self.dropout), value)
        del weights
        out = view_any(F.scale(out), (length, batch, width))
        return _scatter(F.linear(out, self.proj.weight), self.parts)

    def _head(self, x: Tensor) -> Tensor:
        """(batch, heads, length, head_dim), seen as it lies: products of matrices take it so."""
        length, batch, _ = x.shape
        return view_any(x, (batch, self.heads, length, self.head_dim))


def _softmax_in_place(x: Tensor) -> Tensor:
    """ScaledUpperTriangMaskedSoftmax: saves its result, in 16 bits; backward works in place."""
    node = record((x,), lambda gradient, _: [gradient])
    out = x.like(x.shape)
    if node is not None:
        keep(node, out)
    return connect(out, node)


class Layer(nn.Module):
    """TransformerLayer: norms first, each part's bias, dropout and residual together."""

    def __init__(self, arena: Arena, config: Config, recipe: Recipe, dtype: DType) -> None:
        hidden, ranks = config.number("hidden_size"), recipe.layout.tensor
        inner = find_style(config.model_type).sizes(config, 0).width // ranks
        self.dropout = config.real("resid_pdrop", default=0.1)
        self.input_layernorm = nn.LayerNorm(arena, hidden, dtype)
        self.attention = Attention(arena, config, recipe, dtype)
        self.pre_mlp_layernorm = nn.LayerNorm(arena, hidden, dtype)
        self.fc1 = nn.Linear(arena, hidden, inner, dtype, has_bias=True)
        self.fc2 = nn.Linear(arena, inner, hidden, dtype, has_bias=True)

    def __call__(self, x: Tensor) -> Tensor:
        x = self._join(self.attention(self.input_layernorm(x)), self.attention.proj.bias, x)
        parts = self.attention.parts
        out = _by_columns(self.pre_mlp_layernorm(x), self.fc1.weight, None, parts)
        out = _bias_gelu(out, self.fc1.bias)
        return self._join(_scatter(F.linear(out, self.fc2.weight), parts), self.fc2.bias, x)

    def _join(self, x: Tensor, bias: Tensor | None, residual: Tensor) -> Tensor:
        """bias_dropout_add."""
        x = x if bias is None else F.add(x, bias)
        return F.add(residual, F.dropout(x, self.dropout))


def _by_columns(x: Tensor, weight: Tensor, bias: Tensor | None, parts: int) -> Tensor:
    """ColumnParallelLinear: of a sequence that ranks share out, a rank keeps its part of the input,
    and gathers all of it in both passes, in one buffer of all layers (GlobalMemoryBuffer).

    Source: LinearWithGradAccumulationAndAsyncCommunication of core/tensor_parallel/layers.py.
    """
    if parts == 1:
        return F.linear(x, weight, bias)
    whole, sizes = (x.shape[0] * parts, *x.shape[1:]), weight.shape
    work = 2 * x.numel * parts * sizes[0]

    def rule(gradient: Tensor, _: Sequence[Tensor]) -> Gradients:
        of_input = F.multiply(gradient, whole, work=work)
        part = of_input.like((whole[0] // parts, *whole[1:]))
        of_weight = F.multiply(gradient, sizes, work=work)
        del of_input
        return [part, of_weight.alias(), None if bias is None else gradient.like(bias.shape)]

    node = record((x, weight, bias), rule, x, weight)
    if not x.arena.held:  # as long as the program runs
        x.arena.held = [x.like(whole)]
    return connect(F.multiply(x, (*whole[:2], sizes[0]), work=work), node)


def _scatter(x: Tensor, parts: int) -> Tensor:
    """reduce_scatter_to_sequence_parallel_region: this rank's part; backward gathers all."""
    if parts == 1:
        return x
    whole = x.shape
    node = record((x,), lambda gradient, _: [gradient.like(whole)])
    return connect(x.like((whole[0] // parts, *whole[1:])), node)


def _bias_gelu(x: Tensor, bias: Tensor | None) -> Tensor:
    """GeLUFunction: saves its input, and gives the bias's gradient by a sum."""

    def rule(gradient: Tensor, _: Sequence[Tensor]) -> Gradients:
        out = gradient.like()
        return [out, None if bias is None else gradient.like(bias.shape)]

    node = record((x, bias), rule, x)
    return connect(x.like(), node)


class Megatron(LanguageModel):
    """GPTModel of one stage of a pipeline."""

    def __init__(self, arena: Arena, config: Config, recipe: Recipe) -> None:
        dtype, layout = parameter_dtype(recipe), recipe.layout
        hidden, ranks = config.number("hidden_size"), layout.tensor
        padded = _PADDED_TO * ranks
        rows = -(-config.number("vocab_size") // padded) * padded // ranks
        positions = check_length(config, recipe)
        self.is_first, self.is_last = not layout.place, layout.place == layout.pipeline - 1
        self.dropout = config.real("embd_pdrop", default=0.1)
        self.words = nn.Embedding(arena, rows, hidden, dtype) if self.is_first else None
        self.positions = nn.Embedding(arena, positions, hidden, dtype) if self.is_first else None
        self.parts = ranks if layout.sequence else 1
        self.received = None if self.is_first else Incoming(hidden, dtype, self.parts)
        count = config.number("num_hidden_layers", least=1)
        self.layers = nn.Stack(arena, "layers", count, lambda: Layer(arena, config, recipe, dtype))
        self.final_layernorm = nn.LayerNorm(arena, hidden, dtype) if self.is_last else None
        tied = None if self.words is None else self.words.weight
        self.head = nn.LMHead(arena, hidden, rows, dtype, weight=tied) if self.is_last else None
        self.stacks = (self.layers,)

    def hidden(self, tokens: Tensor) -> Tensor:
        """The input of the head, or the output of a stage."""
        x = self.layers(self._embed(tokens))
        return x if self.final_layernorm is None else self.final_layernorm(x)

    def _embed(self, tokens: Tensor) -> Tensor:
        batch, length = tokens.shape
        if self.received is not None:
            x = self.received(tokens)
            out = x.alias((length // self.parts, batch, x.shape[-1]))
            out.needs_grad = True
            return out
        if self.words is None or self.positions is None:
            raise AssertionError("the first stage has embeddings")
        words = self.words(tokens)
        places = self.positions(tokens.like((1, length), INT64))
        x = F.add(words, places)
        del words, places
        x = F.contiguous(F.transpose(x, 0, 1))
        x = _scatter(x, self.parts)  # a copy of its part
        return F.dropout(x, self.dropout)

    def __call__(self, *inputs: Tensor) -> Tensor:
        tokens, _ = inputs
        x = self.hidden(tokens)
        if self.head is None:
            return x
        return _vocabulary_loss(_by_columns(x, self.head.weight, None, self.parts))


def _vocabulary_loss(logits: Tensor) -> Tensor:
    """vocab_parallel_cross_entropy: the logits in float32, which become probabilities and then
    their own gradient in place.
    """
    shape, before = logits.shape, logits.dtype

    def rule(_: Tensor, saved: Sequence[Tensor]) -> Gradients:
        return [saved[0].like(shape, before)]

    node = record((logits,), rule)
    wide = logits.like(shape, FLOAT32)
    mask = logits.like(shape[:-1], BOOL)
    targets = logits.like(shape[:-1], INT64)
    loss = logits.like(shape[:-1], FLOAT32)
    if node is not None:
        keep(node, wide, mask, targets)
    return F.mean(F.view(connect(loss, node), (shape[0] * shape[1],)))
