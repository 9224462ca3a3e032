"""BERT and RoBERTa, as transformers' modeling_bert.py has them: a masked language model, or an
encoder of sentences that is trained by contrast.
"""

from __future__ import annotations

from collections.abc import Sequence

from ullage.facts.families.config import Config
from ullage.facts.families.encoders import Half, halves_of
from ullage.log.category import Category
from ullage.players.eager.training.architectures.activations import find_activation
from ullage.players.eager.training.architectures.losses import contrast, token_loss, unit_length
from ullage.players.eager.training.architectures.model import Model, ids, parameter_dtype
from ullage.players.eager.training.architectures.rotary import join_heads, split_heads
from ullage.players.eager.training.eager import functional as F
from ullage.players.eager.training.eager import module as nn
from ullage.players.eager.training.eager.arena import Arena
from ullage.players.eager.training.eager.attention import attend_fully
from ullage.players.eager.training.eager.indexing import select
from ullage.players.eager.training.eager.reductions import mean
from ullage.players.eager.training.eager.tensor import INT64, DType, Tensor, empty
from ullage.players.eager.training.recipe import Recipe


class Embeddings(nn.Module):
    """BertEmbeddings: words, types and positions."""

    def __init__(self, arena: Arena, config: Config, dtype: DType) -> None:
        hidden, positions = config.number("hidden_size"), config.number("max_position_embeddings")
        self.words = nn.Embedding(arena, config.number("vocab_size"), hidden, dtype)
        self.positions = nn.Embedding(arena, positions, hidden, dtype)
        self.types = nn.Embedding(arena, config.number("type_vocab_size"), hidden, dtype)
        self.norm = nn.LayerNorm(arena, hidden, dtype)
        self.dropout = config.real("hidden_dropout_prob", default=0.1)
        self.numbers = [empty(arena, (1, positions), INT64, Category.BUFFER) for _ in range(2)]
        self.counts_tokens = config.model_type != "bert"
        self.longest = positions - (
            0 if config.model_type == "bert" else 2
        )  # two stand for padding

    def __call__(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        positions = self.numbers[0].alias((1, length))
        if self.counts_tokens:  # RoBERTa counts the tokens that are not padding
            positions = tokens.like()
        types = tokens.like((positions.shape[0], length))
        words = self.words(tokens)
        kinds = self.types(types if types.shape == tokens.shape else types.like(tokens.shape))
        x = F.add(words, kinds)
        places = self.positions(positions)
        x = F.add(x, places)
        return F.dropout(self.norm(x), self.dropout)


class Attention(nn.Module):
    """BertSelfAttention and BertSelfOutput."""

    def __init__(self, arena: Arena, config: Config, half: Half, dtype: DType) -> None:
        hidden, self.head_dim = half.shape.hidden, half.shape.head_dim
        self.attention_dropout = config.real("attention_probs_dropout_prob", default=0.1)
        self.dropout = config.real("hidden_dropout_prob", default=0.1)
        self.query, self.key, self.value, self.dense = (
            nn.Linear(arena, hidden, hidden, dtype, has_bias=True) for _ in range(4)
        )
        self.norm = nn.LayerNorm(arena, hidden, dtype)

    def __call__(self, x: Tensor) -> Tensor:
        query = split_heads(self.query(x), self.head_dim)
        key = split_heads(self.key(x), self.head_dim)
        value = split_heads(self.value(x), self.head_dim)
        out = join_heads(attend_fully(query, key, value, dropout=self.attention_dropout))
        del query, key, value
        out = F.dropout(self.dense(out), self.dropout)
        return self.norm(F.add(out, x))


class Layer(nn.Module):
    """BertLayer: its norms after its parts."""

    def __init__(self, arena: Arena, config: Config, half: Half, dtype: DType) -> None:
        hidden, inner = half.shape.hidden, half.width
        self.adapted = {"intermediate": ("dense",), "output": ("dense",)}
        self.dropout = config.real("hidden_dropout_prob", default=0.1)
        self.attention = Attention(arena, config, half, dtype)
        self.intermediate = nn.Linear(arena, hidden, inner, dtype, has_bias=True)
        self.output = nn.Linear(arena, inner, hidden, dtype, has_bias=True)
        self.norm = nn.LayerNorm(arena, hidden, dtype)
        self.activation = find_activation(config, "hidden_act", default="gelu")

    def __call__(self, x: Tensor) -> Tensor:
        x = self.attention(x)
        out = self.activation(self.intermediate(x))
        out = F.dropout(self.output(out), self.dropout)
        return self.norm(F.add(out, x))


class Head(nn.Module):
    """BertLMPredictionHead: its weight is that of the words."""

    def __init__(self, arena: Arena, config: Config, dtype: DType, words: Tensor) -> None:
        hidden, vocab = config.number("hidden_size"), config.number("vocab_size")
        self.dense = nn.Linear(arena, hidden, hidden, dtype, has_bias=True)
        self.norm = nn.LayerNorm(arena, hidden, dtype)
        self.activation = find_activation(config, "hidden_act", default="gelu")
        is_tied = config.flag("tie_word_embeddings", default=True)
        self.decoder = nn.LMHead(
            arena, hidden, vocab, dtype, has_bias=True, weight=words if is_tied else None
        )

    def __call__(self, x: Tensor) -> Tensor:
        return self.decoder(self.norm(self.activation(self.dense(x))))


class Bert(Model):
    """BertForMaskedLM; BertModel (field `architectures`) embeds sentences.

    A sentence's embedding is the mean over its tokens, of length 1; of each pair in a batch the
    other's is to be found among all (multiple negatives ranking).
    """

    def __init__(self, arena: Arena, config: Config, recipe: Recipe) -> None:
        dtype = parameter_dtype(recipe)
        embeds_sentences = _embeds_sentences(config)
        self.embeddings = Embeddings(arena, config, dtype)
        (half,) = halves_of(config)
        self.layers = nn.Stack(
            arena, "encoder", half.layers, lambda: Layer(arena, config, half, dtype)
        )
        self.head = self.pooler = None
        if embeds_sentences:
            self.adapted = {"pooler": ("dense",)}
            hidden = half.shape.hidden
            self.pooler = nn.Linear(arena, hidden, hidden, dtype, has_bias=True)
        else:
            self.head = Head(arena, config, dtype, self.embeddings.words.weight)
        self.stacks = (self.layers,)

    @property
    def unseen(self) -> Sequence[nn.Module]:
        return () if self.pooler is None else (self.pooler,)

    def inputs(self, arena: Arena, recipe: Recipe) -> tuple[Tensor, ...]:
        tokens = ids(arena, recipe, self.embeddings.longest)
        return (tokens, tokens) if self.head is not None else (tokens, ids(arena, recipe))

    def __call__(self, *inputs: Tensor) -> Tensor:
        tokens, others = inputs
        if self.head is None:
            return contrast(self._sentence(tokens), self._sentence(others))
        logits = self.head(self.layers(self.embeddings(tokens)))
        return token_loss(logits, others)

    def _sentence(self, tokens: Tensor) -> Tensor:
        x = self.layers(self.embeddings(tokens))
        if self.pooler is not None:  # made by the library, though nobody asks for it
            pooled = F.elementwise(self.pooler(select(x, 1)), saves_input=False, saves_output=True)
            del pooled
        return unit_length(F.view(mean(x, 1), (x.shape[0], x.shape[2])))


def _embeds_sentences(config: Config) -> bool:
    """The published model has no head: it gives embeddings."""
    kinds = config.row("architectures", default=())
    kind = str(kinds[0]) if kinds else "ForMaskedLM"
    if not kind.endswith(("ForMaskedLM", "Model")):
        raise config.wrong(
            "architectures", f"found {kind!r}, expected one of BertForMaskedLM, BertModel"
        )
    if config.flag("is_decoder", default=False):
        raise config.wrong("is_decoder", "found true, expected an encoder")
    return kind.endswith("Model")
