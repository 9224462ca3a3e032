"""One rank of a job that is spread over GPUs: what it builds, what it gathers, what it keeps.

spread = Spread(arena, layout, dtype)
model = build_model(arena, config, recipe)
spread.begin(model)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ullage.log.category import Category
from ullage.players.eager.training.division import check_model
from ullage.players.eager.training.eager.arena import Arena
from ullage.players.eager.training.eager.module import Identity
from ullage.players.eager.training.eager.parallel.sequence import (
    DividedEmbedding,
    Gathered,
    Reduced,
)
from ullage.players.eager.training.eager.parallel.sharding import FullyShard, shard_shape
from ullage.players.eager.training.eager.parallel.stages import DividedHead, Incoming, KeptHead
from ullage.players.eager.training.eager.tensor import empty
from ullage.players.eager.training.layout import Layout

if TYPE_CHECKING:
    from ullage.players.eager.training.architectures.model import Model
    from ullage.players.eager.training.eager.arena import Storage
    from ullage.players.eager.training.eager.dtype import DType
    from ullage.players.eager.training.eager.tensor import Tensor
    from ullage.players.eager.training.optimizers import Optimizer
    from ullage.players.eager.training.recipe import Recipe

_LAST_STAGE_PASSES: Final = 8


class Spread:
    """A rank's duties to the others.

    Attributes:
        layout: how the job is spread over GPUs.
        sharding: FSDP2's part; None where every rank has the parameters whole.
    """

    def __init__(self, arena: Arena, layout: Layout, stored: DType) -> None:
        self.arena = arena
        self.layout = layout
        self.buckets: Storage | None = None
        self.root: list[Tensor] = []
        self.sent: list[Tensor] = []
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

    def cut(self, model: Any, recipe: Recipe) -> None:  # noqa: ANN401
        """The model is built: what belongs to another stage goes, the ends are divided."""
        layout = self.layout
        if recipe.library == "megatron":
            return  # the model has been built as a stage
        check_model(model, recipe)
        if layout.sequence:
            for layer in model.layers.layers:
                layer.self_attn = Gathered(layer.self_attn, layout.tensor)
                layer.mlp = Gathered(layer.mlp, layout.tensor)
        elif layout.tensor > 1 and self.arena.recorder is not None:
            for layer in model.layers.layers:
                layer.self_attn = Reduced(layer.self_attn, layout.tensor)
                layer.mlp = Reduced(layer.mlp, layout.tensor)
        if layout.place:
            weight = model.embed_tokens.weight
            parts = layout.tensor if layout.sequence else 1
            model.embed_tokens = Incoming(weight.shape[1], weight.dtype, parts)
        elif layout.sequence:
            model.embed_tokens = DividedEmbedding(model.embed_tokens.weight, layout.tensor)
        if layout.place < layout.pipeline - 1:
            model.norm = model.lm_head = Identity()
            return
        if layout.tensor > 1:
            model.lm_head = DividedHead(
                model.lm_head, layout.tensor, is_sequence_divided=layout.sequence
            )
        if layout.pipeline > 1:
            unplayed = layout.micro_batches - len(self.passes(1))
            model.lm_head = KeptHead(model.lm_head, model.embed_tokens, max(unplayed, 0))

    def begin(self, model: Model, parameters: Sequence[tuple[Tensor, int]]) -> None:
        """DDP makes its buckets, FSDP2 knows its groups."""
        if self.sharding is not None:
            inside = {id(tensor) for stack in model.stacks for tensor, _ in stack.parameters()}
            self.root = [tensor for tensor, _ in parameters if id(tensor) not in inside]
        elif self.layout.num_replicas > 1 and self.layout.buckets != "none":
            size = sum(tensor.nbytes * count for tensor, count in parameters if tensor.needs_grad)
            holds_gradients = self.layout.buckets == "views"
            owner = Category.GRADIENT if holds_gradients else Category.COMMUNICATION
            self.buckets = self.arena.take(size, owner)
            if holds_gradients:  # each gradient is copied into its bucket, and freed
                self.arena.steps_with = lambda _: None

    def passes(self, accumulation: int) -> list[bool]:
        """The passes of a step that have to be played, and whether each only goes forward.

        Two stand for any number that are accumulated. In a pipeline as many are played as a stage
        has in flight, of which the last goes backward, too; in 1F1B others have been through
        before, and have left gradients. Of the last stage, where each leaves its logits, more are.
        """
        if self.layout.pipeline == 1:
            return [False] * min(accumulation, 2)
        if self.layout.in_flight == 1:
            return [False] * min(self.layout.micro_batches, _LAST_STAGE_PASSES)
        in_flight = [True] * (self.layout.in_flight - 1) + [False]
        return in_flight if self.layout.schedule == "gpipe" else [False, *in_flight]

    def run(self, model: Any, inputs: Sequence[Tensor]) -> Tensor:  # noqa: ANN401
        """The loss, or the output that a stage sends to the next one.

        The output is freed once it is sent: in GPipe after all micro-batches, in 1F1B after the
        next one, in both before the backward pass (_wait_and_release_fwd_send of torch 2.15).
        """
        if self.layout.place == self.layout.pipeline - 1:
            loss: Tensor = model(*inputs)
            return loss
        output: Tensor = model.hidden(inputs[0])
        if self.layout.schedule == "1f1b":
            self._release()
        self.sent.append(output)
        return output

    def _release(self) -> None:
        for tensor in self.sent:
            tensor.storage = self.arena.take(0)
        self.sent.clear()

    def before_forward(self) -> None:
        """Gathers the parameters outside the layers; they stay gathered."""
        if self.sharding is not None and self.root:
            self.sharding.gather(self.root)
            self.sharding.order.clear()

    def before_backward(self) -> None:
        """Frees the outputs that were sent, and gathers the last layer."""
        self._release()
        if self.sharding is not None:
            self.sharding.turn()

    def after_backward(self) -> None:
        """Reduces the gradients outside the layers last."""
        if self.sharding is not None:
            if self.root:  # a stage between the first and the last has nothing beside its layers
                self.sharding.reduce(self.root)
            self.sharding.finish()

    def after_passes(self, model: Any) -> None:  # noqa: ANN401
        """The schedule's step ends: the logits of its micro-batches are merged, and freed."""
        head = getattr(model, "lm_head", None)
        if isinstance(head, KeptHead):
            head.merge(self.arena, self.layout.micro_batches)

    def own(self, parameters: Sequence[tuple[Tensor, int]]) -> list[tuple[Tensor, int]]:
        """The tensors that this rank's optimizer steps: parts of parameters, or some of them whole.

        ZeroRedundancyOptimizer hands out whole parameters, the largest first, each to the rank
        that has least; this is the rank that gets most.
        """
        if self.layout.offload:
            return []
        if self.sharding is not None:
            return [(self._part(tensor), count) for tensor, count in parameters]
        if self.layout.sharding != "zero1" or self.layout.num_replicas == 1:
            return list(parameters)
        return _greedy(parameters, self.layout.num_replicas)

    def count(self, parameters: Sequence[tuple[Tensor, int]]) -> int:
        """Elements of the parameters that this rank keeps, on the GPU or in host memory."""
        return sum(self._part(tensor).numel * count for tensor, count in parameters)

    def host_bytes(self, parameters: Sequence[tuple[Tensor, int]], optimizer: Optimizer) -> int:
        """The host memory of an offloaded rank, bytes: shards, their gradients and states.

        Counts: each once, at its dtype. Ignores: buffers in which they are pinned for a copy.
        Error: none beside these. Source: torch 2.15, fully_shard's CPUOffloadPolicy, in
        torch/distributed/fsdp/_fully_shard/_fsdp_param.py.
        """
        if not self.layout.offload:
            return 0
        host = Arena(self.arena.machine)
        total = 0
        for tensor, count in parameters:
            part = self._part(tensor)
            copies = [
                empty(host, part.shape, part.dtype) for _ in range(2 if tensor.needs_grad else 1)
            ]
            copies += optimizer.prepare(copies[0]) if tensor.needs_grad else []
            total += count * sum(each.nbytes for each in copies)
        return total

    def _part(self, tensor: Tensor) -> Tensor:
        if self.sharding is None:
            return tensor
        part = tensor.alias(shard_shape(tensor.shape, self.sharding.num_ranks(tensor)))
        part.needs_grad = tensor.needs_grad
        part.dtype = self.sharding.stored
        return part


def _greedy(parameters: Sequence[tuple[Tensor, int]], ranks: int) -> list[tuple[Tensor, int]]:
    loads = [0] * ranks
    taken: list[dict[int, tuple[Tensor, int]]] = [{} for _ in range(ranks)]
    for tensor, count in sorted(parameters, key=lambda pair: -pair[0].numel):
        for _ in range(count):
            rank = loads.index(min(loads))
            loads[rank] += tensor.numel
            before = taken[rank].get(id(tensor), (tensor, 0))[1]
            taken[rank][id(tensor)] = (tensor, before + 1)
    return list(taken[loads.index(max(loads))].values())
