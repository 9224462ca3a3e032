"""One rank of a job that is spread over GPUs: what it builds, what it gathers, what it keeps.

config = divide(config, layout)           # what tensor parallelism leaves of the model
spread = Spread(arena, layout, dtype)
model = build_model(arena, config, recipe)
spread.begin(model)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ullage.estimate.eager.arena import Arena
from ullage.estimate.eager.sharding import FullyShard
from ullage.estimate.eager.stages import DividedHead, Incoming, KeptHead, Outgoing
from ullage.estimate.eager.tensor import empty
from ullage.estimate.layout import Layout
from ullage.models.config import Config
from ullage.trace.category import Category

if TYPE_CHECKING:
    from ullage.estimate.architectures.model import Model
    from ullage.estimate.eager.arena import Storage
    from ullage.estimate.eager.dtype import DType
    from ullage.estimate.eager.tensor import Tensor
    from ullage.estimate.optimizers import Optimizer

__all__ = ["Spread", "divide"]

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


def divide(config: Config, layout: Layout) -> Config:
    """The model that one rank computes: of a tensor-parallel group fewer heads and a narrower MLP,
    of a pipeline the layers of its stage.

    As parallelize_module does with ColwiseParallel for the projections into heads and into the
    MLP, RowwiseParallel for those out of them. Layers that are left over go to the first stages.

    Raises:
        SpecError: the model cannot be divided, or not by this number.
    """
    if layout.tensor == layout.pipeline == 1:
        return config
    if config.model_type not in _DIVISIBLE:
        raise config.wrong(
            "model_type",
            f"found {config.model_type!r}, which ullage cannot divide; take tensor 1 and "
            f"pipeline 1, or play a rank with `ullage run --world-size`",
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
    return Config(config.name, fields, config.inside)


def _divide_layers(config: Config, fields: dict[str, Any], ranks: int) -> None:
    heads = config.number("num_attention_heads")
    fields.setdefault("head_dim", config.number("hidden_size") // heads)
    fields.setdefault("num_key_value_heads", heads)
    for name in _DIVIDED:
        value = fields.get(name)
        if value is None:
            continue
        if value % ranks:
            raise config.wrong(
                name, f"found {value}, which tensor {ranks} does not divide; take a divisor of it"
            )
        fields[name] = value // ranks


class Spread:
    """What a rank does for the sake of the others.

    Attributes:
        layout: of the job.
        sharding: FSDP2's part; None where every rank has the parameters whole.
    """

    def __init__(self, arena: Arena, layout: Layout, stored: DType) -> None:
        self.arena = arena
        self.layout = layout
        self.buckets: Storage | None = None
        self.root: list[Tensor] = []
        self.sharding: FullyShard | None = None
        if layout.num_shards > 1:
            self.sharding = FullyShard(
                arena,
                layout.num_shards,
                stored,
                is_freed=layout.sharding == "fsdp",
                is_offloaded=layout.offload,
            )
        arena.sharding = self.sharding

    def cut(self, model: Any) -> None:  # noqa: ANN401
        """The model is built: what belongs to another stage goes, the head is divided."""
        layout = self.layout
        width = model.embed_tokens.weight.shape[1] if layout.pipeline > 1 else 0
        if layout.place:
            model.embed_tokens = Incoming(width, model.embed_tokens.weight.dtype)
        if layout.place < layout.pipeline - 1:
            model.norm = Outgoing()
            model.lm_head = Outgoing()
            return
        if layout.tensor > 1:
            model.lm_head = DividedHead(model.lm_head, layout.tensor)
        if layout.pipeline > 1:
            model.lm_head = KeptHead(model.lm_head, layout.micro_batches)

    def begin(self, model: Model, parameters: Sequence[tuple[Tensor, int]]) -> None:
        """DDP makes its buckets, FSDP2 knows its groups."""
        if self.sharding is not None:
            inside = {id(one) for stack in model.stacks for one, _ in stack.parameters()}
            self.root = [one for one, _ in parameters if id(one) not in inside]
        elif self.layout.data > 1:
            size = sum(one.nbytes * count for one, count in parameters if one.needs_grad)
            self.buckets = self.arena.take(size, Category.COMMUNICATION)

    def passes(self, accumulation: int) -> list[bool]:
        """The passes of a step that have to be played, and whether each only goes forward.

        Two stand for any number that are accumulated. In a pipeline as many are played as a stage
        has in flight, of which the last goes backward, too; in 1F1B others have been through
        before, and have left gradients.
        """
        if self.layout.pipeline == 1:
            return [False] * min(accumulation, 2)
        if self.layout.micro_batches == 1:
            return [False]
        in_flight = [True] * (self.layout.in_flight - 1) + [False]
        return in_flight if self.layout.schedule == "gpipe" else [False, *in_flight]

    def before_forward(self) -> None:
        """What belongs to no layer is gathered, and stays."""
        if self.sharding is not None and self.root:
            self.sharding.gather(self.root)
            self.sharding.order.clear()

    def before_backward(self) -> None:
        """The last layer is gathered."""
        if self.sharding is not None:
            self.sharding.turn()

    def after_backward(self) -> None:
        """What belongs to no layer is reduced last."""
        if self.sharding is not None:
            if self.root:  # a stage between the first and the last has nothing beside its layers
                self.sharding.reduce(self.root)
            self.sharding.finish()

    def after_passes(self, model: Any) -> None:  # noqa: ANN401
        """The schedule's step ends: the logits of its micro-batches are let go."""
        head = getattr(model, "lm_head", None)
        if isinstance(head, KeptHead):
            head.kept.clear()

    def own(self, parameters: Sequence[tuple[Tensor, int]]) -> list[tuple[Tensor, int]]:
        """What this rank's optimizer steps: parts of parameters, or some of them whole.

        ZeroRedundancyOptimizer hands out whole parameters, the largest first, each to the rank
        that has least; this is the rank that gets most.
        """
        if self.layout.offload:
            return []
        if self.sharding is not None:
            return [(self._part(one), count) for one, count in parameters]
        if self.layout.sharding != "zero1" or self.layout.data == 1:
            return list(parameters)
        return _greedy(parameters, self.layout.data)

    def host_bytes(self, parameters: Sequence[tuple[Tensor, int]], optimizer: Optimizer) -> int:
        """What an offloaded rank keeps in host memory: shards, their gradients and states."""
        if not self.layout.offload:
            return 0
        host = Arena(self.arena.machine)
        total = 0
        for one, count in parameters:
            part = self._part(one)
            kept = [empty(host, part.shape, part.dtype) for _ in range(2 if one.needs_grad else 1)]
            kept += optimizer.prepare(kept[0]) if one.needs_grad else []
            total += count * sum(each.nbytes for each in kept)
        return total

    def _part(self, one: Tensor) -> Tensor:
        ranks = self.layout.num_shards
        rows = -(-one.shape[0] // ranks) if one.shape else 1
        part = one.alias((rows, *one.shape[1:]))
        part.needs_grad = one.needs_grad
        if self.sharding is not None:
            part.dtype = self.sharding.stored
        return part


def _greedy(parameters: Sequence[tuple[Tensor, int]], ranks: int) -> list[tuple[Tensor, int]]:
    loads = [0] * ranks
    taken: list[dict[int, tuple[Tensor, int]]] = [{} for _ in range(ranks)]
    for one, count in sorted(parameters, key=lambda pair: -pair[0].numel):
        for _ in range(count):
            rank = loads.index(min(loads))
            loads[rank] += one.numel
            before = taken[rank].get(id(one), (one, 0))[1]
            taken[rank][id(one)] = (one, before + 1)
    return list(taken[loads.index(max(loads))].values())
