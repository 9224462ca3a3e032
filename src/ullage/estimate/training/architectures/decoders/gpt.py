"""GPT-2, OPT and GPT-NeoX: layer norms, biases, an MLP of two matrices, dropout.

Each follows the modeling file of transformers that has its name.
"""

from __future__ import annotations

from typing import ClassVar

from ullage.estimate.training.architectures import rotary
from ullage.estimate.training.architectures.activations import find_activation
from ullage.estimate.training.architectures.losses import language_loss
from ullage.estimate.training.architectures.masks import causal_mask
from ullage.estimate.training.architectures.model import LanguageModel, head_width, parameter_dtype
from ullage.estimate.training.architectures.rotary import join_heads, split_heads
from ullage.estimate.training.eager import functional as F
from ullage.estimate.training.eager import module as nn
from ullage.estimate.training.eager.arena import Arena
from ullage.estimate.training.eager.attention import attend, attend_eagerly
from ullage.estimate.training.eager.tensor import DType, Tensor
from ullage.estimate.training.recipe import Recipe
from ullage.models.config import Config


class MLP(nn.Module):
    """GPT2MLP: two matrices with biases."""

    def __init__(self, arena: Arena, config: Config, dtype: DType) -> None:
        hidden = config.number("n_embd", "hidden_size")
        inner = config.number("n_inner", "ffn_dim", "intermediate_size", default=4 * hidden)
        has_bias = config.flag("enable_bias", default=True)
        self.act = find_activation(
            config, "activation_function", "hidden_act", default=_ACTIVATIONS[config.model_type]
        )
        self.c_fc = nn.Linear(arena, hidden, inner, dtype, has_bias=has_bias)
        self.c_proj = nn.Linear(arena, inner, hidden, dtype, has_bias=has_bias)

    def __call__(self, x: Tensor) -> Tensor:
        return self.c_proj(self.act(self.c_fc(x)))


_ACTIVATIONS = {"gpt2": "gelu_new", "opt": "relu", "gpt_neox": "gelu"}


class GPT2Attention(nn.Module):
    """GPT2Attention: queries, keys and values come from one matrix."""

    def __init__(self, arena: Arena, config: Config, recipe: Recipe, dtype: DType) -> None:
        hidden = config.number("n_embd", "hidden_size")
        heads = config.number("n_head", "num_attention_heads")
        if hidden % heads:
            raise config.wrong("n_head", f"found {heads}, expected a divisor of n_embd, {hidden}")
        self.head_dim = hidden // heads
        self.is_eager = recipe.attention == "eager"
        self.dropout = config.real("attn_pdrop", default=0.1)
        self.c_attn = nn.Linear(arena, hidden, 3 * hidden, dtype, has_bias=True)
        self.c_proj = nn.Linear(arena, hidden, hidden, dtype, has_bias=True)

    def __call__(self, x: Tensor, mask: Tensor | None) -> Tensor:
        hidden = x.shape[-1]
        query, key, value = F.split(self.c_attn(x), (hidden,) * 3)
        key, value = split_heads(key, self.head_dim), split_heads(value, self.head_dim)
        query = split_heads(query, self.head_dim)
        if self.is_eager:
            out = attend_eagerly(query, key, value, mask, dropout=self.dropout, is_wide=False)
        else:
            out = attend(query, key, value, mask, dropout=self.dropout)
        del query, key, value
        return self.c_proj(join_heads(out))


class GPT2Layer(nn.Module):
    """GPT2Block."""

    def __init__(self, arena: Arena, config: Config, recipe: Recipe, dtype: DType) -> None:
        hidden = config.number("n_embd", "hidden_size")
        self.dropout = config.real("resid_pdrop", default=0.1)
        self.ln_1 = nn.LayerNorm(arena, hidden, dtype)
        self.attn = GPT2Attention(arena, config, recipe, dtype)
        self.ln_2 = nn.LayerNorm(arena, hidden, dtype)
        self.mlp = MLP(arena, config, dtype)

    def __call__(self, x: Tensor, mask: Tensor | None) -> Tensor:
        residual = x
        x = F.dropout(self.attn(self.ln_1(x), mask), self.dropout)
        x = F.add(x, residual)
        residual = x
        x = F.dropout(self.mlp(self.ln_2(x)), self.dropout)
        return F.add(residual, x)


class GPT2(LanguageModel):
    """GPT2LMHeadModel."""

    is_decoder: ClassVar[bool] = True

    def __init__(self, arena: Arena, config: Config, recipe: Recipe) -> None:
        dtype = parameter_dtype(recipe)
        hidden, vocab = config.number("n_embd", "hidden_size"), config.number("vocab_size")
        self.recipe = recipe
        self.dropout = config.real("embd_pdrop", default=0.1)
        self.wte = nn.Embedding(arena, vocab, hidden, dtype)
        positions = config.number("n_positions", "max_position_embeddings")
        check_length(config, recipe, positions, "n_positions")
        self.wpe = nn.Embedding(arena, positions, hidden, dtype)
        count = config.number("n_layer", "num_hidden_layers", least=1)
        self.h = nn.Stack(arena, "layers", count, lambda: GPT2Layer(arena, config, recipe, dtype))
        self.ln_f = nn.LayerNorm(arena, hidden, dtype)
        self.lm_head = _head(arena, config, self.wte, dtype, is_tied=True)
        self.stacks = (self.h,)

    def __call__(self, *inputs: Tensor) -> Tensor:
        tokens, labels = inputs
        words = self.wte(tokens)
        places = tokens.like((1, tokens.shape[1]))
        positions = self.wpe(places)
        x = F.add(words, positions)
        mask = causal_mask(x, self.recipe)
        x = self.ln_f(self.h(F.dropout(x, self.dropout), mask))
        del words, positions
        return language_loss(self.lm_head, self.lm_head.weight, x, labels, self.recipe.loss_kind)


class OPTAttention(nn.Module):
    """OPTAttention: queries are scaled before the product with the keys."""

    def __init__(self, arena: Arena, config: Config, recipe: Recipe, dtype: DType) -> None:
        hidden = config.number("hidden_size")
        has_bias = config.flag("enable_bias", default=True)
        self.head_dim = head_width(config, "hidden_size", "num_attention_heads")
        self.is_eager = recipe.attention == "eager"
        self.dropout = config.real("attention_dropout", default=0.0)
        self.k_proj, self.v_proj, self.q_proj, self.out_proj = (
            nn.Linear(arena, hidden, hidden, dtype, has_bias=has_bias) for _ in range(4)
        )

    def __call__(self, x: Tensor, mask: Tensor | None) -> Tensor:
        query = split_heads(F.scale(self.q_proj(x)), self.head_dim)
        key, value = self.k_proj(x), self.v_proj(x)
        key, value = split_heads(key, self.head_dim), split_heads(value, self.head_dim)
        attention = attend_eagerly if self.is_eager else attend
        return self.out_proj(join_heads(attention(query, key, value, mask, dropout=self.dropout)))


class OPTLayer(nn.Module):
    """OPTDecoderLayer: its norms come first, or after the residual is added."""

    def __init__(self, arena: Arena, config: Config, recipe: Recipe, dtype: DType) -> None:
        hidden = config.number("hidden_size")
        self.dropout = config.real("dropout", default=0.1)
        self.is_before = config.flag("do_layer_norm_before", default=True)
        self.self_attn = OPTAttention(arena, config, recipe, dtype)
        self.self_attn_layer_norm = nn.LayerNorm(arena, hidden, dtype)
        self.mlp = MLP(arena, config, dtype)
        self.final_layer_norm = nn.LayerNorm(arena, hidden, dtype)

    def __call__(self, x: Tensor, mask: Tensor | None, places: Tensor) -> Tensor:
        del places  # a checkpoint keeps them
        shape = x.shape
        residual = x
        x = self.self_attn_layer_norm(x) if self.is_before else x
        x = F.dropout(self.self_attn(x, mask), self.dropout)
        x = F.add(residual, x)
        x = x if self.is_before else self.self_attn_layer_norm(x)
        x = F.reshape(x, (shape[0] * shape[1], shape[2]))
        residual = x
        x = self.final_layer_norm(x) if self.is_before else x
        x = F.dropout(self.mlp(x), self.dropout)
        x = F.view(F.add(residual, x), shape)
        return x if self.is_before else self.final_layer_norm(x)


class OPT(LanguageModel):
    """OPTForCausalLM."""

    is_decoder: ClassVar[bool] = True

    def __init__(self, arena: Arena, config: Config, recipe: Recipe) -> None:
        dtype = parameter_dtype(recipe)
        hidden, vocab = config.number("hidden_size"), config.number("vocab_size")
        width = config.number("word_embed_proj_dim", default=hidden)
        self.recipe = recipe
        self.embed_tokens = nn.Embedding(arena, vocab, width, dtype)
        positions = config.number("max_position_embeddings")
        check_length(config, recipe, positions, "max_position_embeddings")
        self.embed_positions = nn.Embedding(arena, positions + 2, hidden, dtype)
        is_narrow = width != hidden
        self.project_out = nn.Linear(arena, hidden, width, dtype) if is_narrow else None
        self.project_in = nn.Linear(arena, width, hidden, dtype) if is_narrow else None
        has_norm = config.flag("do_layer_norm_before", default=True) and not config.flag(
            "_remove_final_layer_norm", default=False
        )
        self.final_layer_norm = nn.LayerNorm(arena, hidden, dtype) if has_norm else None
        count = config.number("num_hidden_layers", least=1)
        self.layers = nn.Stack(
            arena, "layers", count, lambda: OPTLayer(arena, config, recipe, dtype)
        )
        self.lm_head = _head(arena, config, self.embed_tokens, dtype, is_tied=True)
        self.stacks = (self.layers,)

    def __call__(self, *inputs: Tensor) -> Tensor:
        tokens, labels = inputs
        words = self.embed_tokens(tokens)
        places = tokens.like()
        mask = causal_mask(words, self.recipe)
        positions = self.embed_positions(places.like())
        words = words if self.project_in is None else self.project_in(words)
        x = self.layers(F.add(words, positions), mask, places)
        x = x if self.final_layer_norm is None else self.final_layer_norm(x)
        x = x if self.project_out is None else self.project_out(x)
        del words, positions
        return language_loss(self.lm_head, self.lm_head.weight, x, labels, self.recipe.loss_kind)


class NeoXAttention(nn.Module):
    """GPTNeoXAttention: each head's query, key and value lie side by side."""

    def __init__(self, arena: Arena, config: Config, recipe: Recipe, dtype: DType) -> None:
        hidden = config.number("hidden_size")
        has_bias = config.flag("attention_bias", default=True)
        self.head_dim = head_width(config, "hidden_size", "num_attention_heads")
        self.is_eager = recipe.attention == "eager"
        self.dropout = config.real("attention_dropout", default=0.0)
        self.query_key_value = nn.Linear(arena, hidden, 3 * hidden, dtype, has_bias=has_bias)
        self.dense = nn.Linear(arena, hidden, hidden, dtype, has_bias=has_bias)

    def __call__(self, x: Tensor, table: rotary.Table, mask: Tensor | None) -> Tensor:
        joined = split_heads(self.query_key_value(x), 3 * self.head_dim)
        query, key, value = F.split(joined, (self.head_dim,) * 3)
        del joined
        query, key = rotary.rotate_part(query, table), rotary.rotate_part(key, table)
        attention = attend_eagerly if self.is_eager else attend
        return self.dense(join_heads(attention(query, key, value, mask, dropout=self.dropout)))


class NeoXLayer(nn.Module):
    """GPTNeoXLayer: attention and MLP side by side, or one after the other."""

    def __init__(self, arena: Arena, config: Config, recipe: Recipe, dtype: DType) -> None:
        hidden = config.number("hidden_size")
        self.dropout = config.real("hidden_dropout", default=0.0)
        self.is_parallel = config.flag("use_parallel_residual", default=True)
        self.input_layernorm = nn.LayerNorm(arena, hidden, dtype)
        self.post_attention_layernorm = nn.LayerNorm(arena, hidden, dtype)
        self.attention = NeoXAttention(arena, config, recipe, dtype)
        self.mlp = MLP(arena, config, dtype)

    def __call__(
        self, x: Tensor, table: rotary.Table, mask: Tensor | None, places: Tensor
    ) -> Tensor:
        del places  # a checkpoint keeps them
        attended = F.dropout(self.attention(self.input_layernorm(x), table, mask), self.dropout)
        if self.is_parallel:
            out = F.dropout(self.mlp(self.post_attention_layernorm(x)), self.dropout)
            return F.add(F.add(out, attended), x)
        attended = F.add(attended, x)
        out = F.dropout(self.mlp(self.post_attention_layernorm(attended)), self.dropout)
        return F.add(out, attended)


class GPTNeoX(LanguageModel):
    """GPTNeoXForCausalLM."""

    is_decoder: ClassVar[bool] = True

    def __init__(self, arena: Arena, config: Config, recipe: Recipe) -> None:
        dtype = parameter_dtype(recipe)
        hidden, vocab = config.number("hidden_size"), config.number("vocab_size")
        self.recipe = recipe
        self.dropout = config.real("hidden_dropout", default=0.0)
        head_dim = head_width(config, "hidden_size", "num_attention_heads")
        self.rotated = int(head_dim * rotary.rotated_share(config, 0.25))
        self.frequencies = rotary.frequencies(arena, self.rotated)
        self.embed_in = nn.Embedding(arena, vocab, hidden, dtype)
        count = config.number("num_hidden_layers", least=1)
        self.layers = nn.Stack(
            arena, "layers", count, lambda: NeoXLayer(arena, config, recipe, dtype)
        )
        self.final_layer_norm = nn.LayerNorm(arena, hidden, dtype)
        self.embed_out = _head(arena, config, self.embed_in, dtype, is_tied=False)
        self.stacks = (self.layers,)

    def __call__(self, *inputs: Tensor) -> Tensor:
        tokens, labels = inputs
        words = self.embed_in(tokens)
        mask = causal_mask(words, self.recipe)
        x = F.dropout(words, self.dropout)
        places = tokens.like((1, tokens.shape[1]))
        x = self.layers(x, rotary.rotary_table(x, x.shape[1], self.rotated), mask, places)
        x = self.final_layer_norm(x)
        del words
        return language_loss(
            self.embed_out, self.embed_out.weight, x, labels, self.recipe.loss_kind
        )


def _head(
    arena: Arena, config: Config, words: nn.Embedding, dtype: DType, *, is_tied: bool
) -> nn.Linear:
    """The last matrix: the embedding's where the configuration, or else the family, ties them."""
    vocab, width = words.weight.shape
    is_tied = config.flag("tie_word_embeddings", default=is_tied)
    return nn.LMHead(arena, width, vocab, dtype, weight=words.weight if is_tied else None)


def check_length(config: Config, recipe: Recipe, positions: int, field: str) -> None:
    """Learned positions end somewhere.

    Raises:
        SpecError: a sample is longer.
    """
    if recipe.length is not None and recipe.length > positions:
        raise config.wrong(
            field, f"found {positions}, too few for a length of {recipe.length} tokens"
        )
