"""The model that one rank computes, where ranks divide layers, sequences or experts.

config = divide(config, recipe)      # fewer heads, a narrower MLP, some of the layers
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ullage.facts.families.config import Config
from ullage.facts.families.decoders import attention_shape
from ullage.ground.errors import SpecError

if TYPE_CHECKING:
    from ullage.players.eager.training.recipe import Recipe

# What a column-wise or row-wise linear layer divides, by the names that configurations have for it.
_DIVIDED: Final = (
    "num_attention_heads", "num_key_value_heads", "intermediate_size", "moe_intermediate_size",
    "shared_expert_intermediate_size",
)  # fmt: skip
# Models whose linear layers are separate and named, so that a plan can divide them.
_DIVISIBLE: Final = frozenset(
    {
        "llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe", "gemma2", "gemma3_text",
        "smollm3", "granite", "olmo2",
    }
)  # fmt: skip
_WITH_EXPERTS: Final = frozenset({"mixtral", "qwen3_moe"})
_CAPPED: Final = frozenset({"gemma2", "gemma3_text"})  # scores by hand, or layers with windows


def divide(config: Config, recipe: Recipe) -> Config:
    """The model that one rank computes: of a tensor-parallel group fewer heads and a narrower MLP,
    of a pipeline the layers of its stage.

    As parallelize_module does with ColwiseParallel for the projections into heads and into the
    MLP, RowwiseParallel for those out of them. Layers that are left over go to the first stages.

    Raises:
        SpecError: the model cannot be divided, or not by this number.
    """
    layout = recipe.layout
    if layout.tensor == layout.pipeline == layout.context == layout.expert == 1:
        return config
    if recipe.library == "megatron":
        return _divide_megatron(config, recipe)
    if config.model_type not in _DIVISIBLE:
        raise config.wrong(
            "model_type",
            f"found {config.model_type!r}, which ullage cannot divide; take tensor, context, "
            f"expert and pipeline 1, or play a rank with `ullage run --world-size`",
        )
    _check_sequence(config, recipe)
    if layout.expert > 1 and config.model_type not in _WITH_EXPERTS:
        raise config.wrong(
            "model_type", f"found {config.model_type!r}, which has no experts; take expert 1"
        )
    fields = dict(config.fields)
    layers = config.number("num_hidden_layers")
    if layers < layout.pipeline:
        raise config.wrong(
            "num_hidden_layers", f"found {layers}, too few for pipeline {layout.pipeline}"
        )
    fields["num_hidden_layers"] = layers // layout.pipeline + (
        layout.place < layers % layout.pipeline
    )
    if layout.tensor > 1:
        _divide_layers(config, fields, layout.tensor)
    return replace(config, fields=fields)


def _divide_megatron(config: Config, recipe: Recipe) -> Config:
    """A stage's layers; each layer divides itself (architectures/decoders/megatron.py)."""
    layout = recipe.layout
    if layout.context > 1 or layout.expert > 1:
        raise SpecError(
            "library: found megatron, of which ullage has tensor, sequence and pipeline "
            "parallelism; take context and expert 1"
        )
    _check_sequence(config, recipe)
    heads, layers = config.number("num_attention_heads"), config.number("num_hidden_layers")
    if heads % layout.tensor:
        raise config.wrong(
            "num_attention_heads",
            f"found {heads}, which tensor {layout.tensor} does not divide; take a divisor",
        )
    if layers % layout.pipeline:
        raise config.wrong(
            "num_hidden_layers",
            f"found {layers}, which pipeline {layout.pipeline} does not divide",
        )
    return replace(config, fields={**config.fields, "num_hidden_layers": layers // layout.pipeline})


def _check_sequence(config: Config, recipe: Recipe) -> None:
    """Refuses a sequence that the ranks cannot share out."""
    layout, length = recipe.layout, recipe.length or 1
    if layout.context > 1:
        parts = 2 * layout.context  # two chunks each, so that all have equal work
        if length % parts:
            raise SpecError(
                f"length: found {length}, which context {layout.context} does not divide; take a "
                f"multiple of {parts}"
            )
        if recipe.attention == "eager":
            raise SpecError("attention: found eager with context parallelism, expected sdpa")
        if config.model_type in _CAPPED:
            raise config.wrong(
                "model_type",
                f"found {config.model_type!r}, whose attention context parallelism cannot divide; "
                f"take context 1",
            )
    local = length // layout.context
    if layout.sequence and local % layout.tensor:
        raise SpecError(
            f"length: found {length}, of which sequence parallelism on tensor {layout.tensor} "
            f"cannot give equal parts; take a multiple of {layout.tensor * layout.context}"
        )


def _divide_layers(config: Config, fields: dict[str, Any], ranks: int) -> None:
    shape = attention_shape(config)
    fields.setdefault("head_dim", shape.head_dim)
    fields.setdefault("num_key_value_heads", shape.kv_heads)
    for name in _DIVIDED:
        value = fields.get(name)
        if value is None:
            continue
        if value % ranks:
            raise config.wrong(
                name, f"found {value}, which tensor {ranks} does not divide; take a divisor of it"
            )
        fields[name] = value // ranks


def check_model(model: Any, recipe: Recipe) -> None:  # noqa: ANN401
    """Refuses what only the model that was built can say.

    Raises:
        SpecError: a layer sees a part of what the ranks would gather, or embedding and head are
            one, which ranks that share out the sequence divide apart.
    """
    layout = recipe.layout
    if layout.context > 1:
        windows = {model.window(kind) for kind in model.kinds}
        short = [
            window for window in windows if window is not None and window < (recipe.length or 0)
        ]
        if short:
            raise SpecError(
                f"length: found {recipe.length}, beyond the sliding window of {min(short)}, for "
                f"which context_parallel has no masks; take context 1"
            )
    if layout.sequence and model.lm_head.weight is model.embed_tokens.weight:
        raise SpecError(
            "tie_word_embeddings: found true, for which sequence parallelism has no formula; take "
            "tensor parallelism alone"
        )
