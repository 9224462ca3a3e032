"""The answer of `ullage estimate` about training: what a training loop needs, term by term.

estimate = estimate_training(config, Recipe(batch=8, length=4096), find_gpu("h100-80gb"))
estimate.bytes, estimate.high_bytes      # the peak of the process, and its upper end
for term in estimate.terms:              # they add up to it
    print(term.name, term.bytes, term.what)
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Final

from ullage.facts.families.architecture import other_parts, text_part
from ullage.facts.families.config import COUNTED, Config
from ullage.ground.protocol.plain import As, Mark, figure
from ullage.log.category import Category
from ullage.players.eager.term import Interval, OwnedTerm, Parts
from ullage.players.eager.training.architectures import MODELS
from ullage.players.eager.training.devices import find_context, find_nccl, machine_of
from ullage.players.eager.training.eager.arena import Log
from ullage.players.eager.training.eager.machine import Machine
from ullage.players.eager.training.infinity import (
    NOTHING,
    HostMemory,
    buffers_on_device,
    host_memory,
)
from ullage.players.eager.training.layout import Layout
from ullage.players.eager.training.loop import Played, play_training
from ullage.players.eager.training.lora import describe_adapters
from ullage.players.eager.training.optimizers import find_optimizer
from ullage.players.eager.training.recipe import Recipe
from ullage.players.eager.training.torch_version import NEWEST, choose_torch
from ullage.players.eager.training.totals import Moment, StepTotals

if TYPE_CHECKING:
    from ullage.facts.gpus.gpu import Entry


@dataclass(frozen=True, slots=True)
class TrainingEstimate(Parts):
    """The memory of a training loop on one GPU.

    Attributes:
        model: the name that the user gave.
        num_parameters: parameters of the whole model.
        num_trainable: parameters that the optimizer changes.
        num_rank_parameters: parameters that a GPU keeps; of the GPU shown, where they differ.
        recipe: how the model is trained.
        gpu: the catalogue's name of the GPU; None where none was given.
        gpu_name: CUDA's name of it; "" where none was given.
        capacity_bytes: memory of the GPU; None where none was given.
        terms: the parts of the peak, in the order in which one explains them.
        peaks: the moment of the peak in each phase: "forward", "backward", "optimizer".
        allocated: what torch.cuda.max_memory_allocated() would say; at the least what is requested.
        assumptions: what the estimate assumes, each a sentence.
        host: memory of the host, and of disks, where shards and states are there.
        work: floating-point operations of the products of matrices in a step.
        log: the played step, of which log.py writes a log as of any run.
        torch: the version of PyTorch that was played.
        is_floor: activations are missing, because only the number of parameters is known.
    """

    model: Annotated[str, Mark.NO_KEY]
    num_parameters: Annotated[int, Mark.NO_KEY]
    num_trainable: Annotated[int, Mark.NO_KEY]
    num_rank_parameters: Annotated[int, Mark.NO_KEY]
    recipe: Recipe
    gpu: str | None
    gpu_name: Annotated[str, Mark.NO_KEY]
    capacity_bytes: int | None
    terms: tuple[OwnedTerm, ...]
    peaks: Annotated[Mapping[str, Moment], As("phases")]
    allocated: Annotated[Interval, Mark.NO_KEY]
    assumptions: tuple[str, ...]
    log: Annotated[Log, Mark.NO_KEY] = field(repr=False, compare=False)
    torch: Annotated[str, Mark.NO_KEY]
    host: Annotated[HostMemory, Mark.NO_KEY] = NOTHING
    work: int = 0
    is_floor: Annotated[bool, Mark.NO_KEY] = False

    @figure
    def sizes(self) -> Annotated[Mapping[str, int], Mark.FLAT]:
        """The bytes of the GPU, of PyTorch's allocator, and of the host, with their bounds."""
        host = self.host.memory
        return {
            "used_bytes": self.bytes,
            "used_low_bytes": self.low_bytes,
            "used_high_bytes": self.high_bytes,
            "allocated_low_bytes": self.allocated.low,
            "allocated_bytes": self.allocated.likely,
            "allocated_high_bytes": self.allocated.high,
            "host_bytes": host.likely,
            "host_low_bytes": host.low,
            "host_high_bytes": host.high,
            "disk_bytes": self.host.disk_bytes,
        }

    @figure
    def peak(self) -> Moment:
        """The moment at which tensors take most."""
        return max(self.peaks.values(), key=lambda moment: moment.allocated_bytes)

    @figure
    def reserved_bytes(self) -> int:
        """The bytes of torch.cuda.max_memory_reserved(): all but the context and NCCL's."""
        return sum(term.bytes for term in self.terms if term.name not in OUTSIDE)

    @figure
    def headroom_bytes(self) -> int | None:
        """The bytes left of the GPU at the upper end; negative where it does not fit."""
        return None if self.capacity_bytes is None else self.capacity_bytes - self.high_bytes

    @property
    def fits(self) -> bool | None:
        """True: even the upper bound fits; False: not even the lower bound does."""
        return None if self.verdict is None else self.verdict.fits


OUTSIDE: Final = ("context", "NCCL")  # terms outside of PyTorch's allocator
_PLAYED: Final = "played: PyTorch's eager mode without values"
_REPLAYED: Final = "replayed: the rules of PyTorch's caching allocator, over two steps"
_ASSUMED: Final = "assumed: the catalogue's figures for this GPU"
_NCCL: Final = "assumed: from training logs of H100s and H200s, and NCCL's code (devices.py)"
_RULES: Final = "assumed: DeepSpeed 0.19.8's defaults (infinity.py)"
# category -> (name, what it is)
_TENSORS: Final = {
    Category.PARAMETER: ("parameters", "the model's weights"),
    Category.BUFFER: ("buffers", "what the model keeps beside its weights, such as running means"),
    Category.OPTIMIZER_STATE: ("optimizer states", "what the optimizer keeps for each parameter"),
    Category.GRADIENT: ("gradients", "of the parameters, as far as they are there at the peak"),
    Category.INPUT: ("inputs", "the batch on the device"),
    Category.ACTIVATION: ("activations", "what the forward pass keeps for the backward pass"),
    Category.TEMPORARY: (
        "temporaries",
        "what one operation or one step of a pass needs for itself",
    ),
    Category.WORKSPACE: ("workspaces", "scratch memory of cuBLAS, cuDNN and attention kernels"),
    Category.COMMUNICATION: ("communication", "buffers in which ranks exchange tensors"),
}


def complete(config: Config, recipe: Recipe) -> Recipe:
    """The recipe; where no size is given, an image model's has the one that it was made for."""
    image = config.number("image_size", default=None)
    return recipe if recipe.image or image is None else replace(recipe, image=image)


def estimate_training(config: Config, recipe: Recipe, gpu: Entry | None = None) -> TrainingEstimate:
    """Estimates the memory of a training loop on a GPU; no torch, a few milliseconds.

    Counts: the step that play_training() plays, the allocator's slack, the driver's context.
    Ignores: a program's own code, compiled programs, other processes.
    Error: docs/results/estimates.md; the interval holds the phantom's peak in all but
    the cases that it marks.
    Source: of each term, its `source`.

    Args:
        config: the model's published configuration.
        recipe: how the model is trained.
        gpu: a row of the catalogue; without one an H100's rules and no context.

    Raises:
        SpecError: the architecture is not known, a field is missing, or what is asked for cannot
            be.
    """
    with _uncollected():
        return _estimate(config, recipe, gpu)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the search for cycles: a play makes none, and a large one takes a third longer."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _estimate(config: Config, recipe: Recipe, gpu: Entry | None) -> TrainingEstimate:
    torch = choose_torch(recipe.torch, None if gpu is None else gpu.compute_capability)
    machine = Machine(torch=torch) if gpu is None else machine_of(gpu, torch)
    played, totals, recipe = _worst_stage(config, recipe, machine)
    error_frac, peak = _error_frac(recipe, torch), totals.peak
    tensors, buffers = _tensor_terms(totals, error_frac), _buffers(played, recipe)
    unsure = sum(peak.requested_by_category.get(category, 0) for category in _UNSURE)
    larger = int(_BLOCKS_FRAC * peak.allocated_bytes)
    return TrainingEstimate(
        model=config.name,
        num_parameters=played.num_parameters,
        num_trainable=played.num_trainable,
        num_rank_parameters=played.num_rank_parameters,
        recipe=recipe,
        gpu=gpu.slug if gpu else None,
        gpu_name=gpu.name if gpu else "",
        capacity_bytes=gpu.total_bytes if gpu else None,
        terms=(
            *tensors,
            _cached(totals, larger),
            *buffers,
            *_surroundings(gpu, torch, recipe.layout),
        ),
        peaks=totals.peaks,
        allocated=Interval(
            totals.low_bytes - int(error_frac * unsure) + sum(each.low_bytes for each in buffers),
            peak.allocated_bytes + sum(each.bytes for each in buffers),
            sum(term.high_bytes for term in (*tensors, *buffers)) + larger,
        ),
        log=played.log,
        torch=".".join(map(str, torch)),
        host=_host(played, recipe),
        is_floor=config.model_type == COUNTED,
        work=played.log.work * recipe.accumulation // played.num_passes,
        assumptions=(*_assumptions(config, recipe, torch), *(gpu.assumptions if gpu else ())),
    )


def _worst_stage(
    config: Config, recipe: Recipe, machine: Machine
) -> tuple[Played, StepTotals, Recipe]:
    candidates = []
    for stage in recipe.layout.stages:
        its = replace(recipe, layout=replace(recipe.layout, stage=stage))
        played = play_training(config, its, machine)
        candidates.append((played, played.totals, its))
    return max(candidates, key=lambda candidate: candidate[1].peak.allocated_bytes)


# What the play was held against the phantom for is exact; other code and other versions were read.
_OTHER_LIBRARY_FRAC: Final = 0.1
_OTHER_TORCH_FRAC: Final = 0.03
_UNSURE: Final = (Category.ACTIVATION, Category.TEMPORARY)


def _error_frac(recipe: Recipe, torch: tuple[int, int]) -> float:
    """The share by which what a step keeps may be more or less: assumed."""
    if recipe.library != "transformers" or recipe.compiled:
        return _OTHER_LIBRARY_FRAC
    return _OTHER_TORCH_FRAC if torch < NEWEST else 0.0


def _tensor_terms(totals: StepTotals, error_frac: float) -> list[OwnedTerm]:
    """The bytes of tensors, in blocks; at the least what they ask for. Where a closed library
    decides of a size, workspaces have an interval.
    """
    terms, peak = [], totals.peak
    for category, (name, what) in _TENSORS.items():
        count = high = peak.by_category.get(category, 0)
        low = peak.requested_by_category.get(category, 0)
        if category is Category.WORKSPACE:
            low = min(max(low + totals.low_bytes - peak.requested_bytes, 0), count)
            high = count + totals.high_bytes - peak.allocated_bytes
        if category in _UNSURE:
            low, high = int(low * (1 - error_frac)), int(count * (1 + error_frac))
        if high:
            terms.append(OwnedTerm(name, count, low, high, what, _PLAYED, category))
    return terms


# A program that builds its model in another order has its blocks elsewhere, so these are bounds.
# In the cases of benchmarks/accuracy/estimate the reserved bytes were wrong by less than _SEGMENTS
# segments (cuBLAS's workspace) and _RESERVED_FRAC of them; the allocated bytes by less than
# _BLOCKS_FRAC of them.
_SEGMENTS: Final = 2
_SEGMENT_BYTES: Final = 32 * 2**20
_RESERVED_FRAC: Final = 0.06
_BLOCKS_FRAC: Final = 0.01


def _cached(totals: StepTotals, larger: int) -> OwnedTerm:
    """Segments outside of blocks. Empty ones are released before an OOM, so the least is 0.

    larger: by how much blocks may be larger in another order.
    """
    cached = totals.reserved_bytes - totals.peak.allocated_bytes
    error = _SEGMENTS * _SEGMENT_BYTES + int(_RESERVED_FRAC * totals.reserved_bytes)
    what = "segments kept for later; given back when memory is short"
    return OwnedTerm("cached blocks", cached, 0, cached + error + larger, what, _REPLAYED)


def _buffers(played: Played, recipe: Recipe) -> list[OwnedTerm]:
    if not recipe.layout.nvme:
        return []
    low, likely, high = buffers_on_device(played.num_parameters)
    what = "DeepSpeed's bucket of gradients, and parameters that it keeps gathered"
    name, owner = "buffers of DeepSpeed", Category.COMMUNICATION
    return [OwnedTerm(name, likely, low, high, what, _RULES, owner)]


def _host(played: Played, recipe: Recipe) -> HostMemory:
    if recipe.layout.nvme:
        return host_memory(played.num_rank_parameters)
    return HostMemory(Interval(played.host_bytes, played.host_bytes, played.host_bytes))


def _surroundings(gpu: Entry | None, torch: tuple[int, int], layout: Layout) -> Iterator[OwnedTerm]:
    """The memory that the process holds outside of PyTorch's allocator."""
    if gpu is None:
        return
    what = "what the driver holds for a process with PyTorch's kernels loaded"
    context = find_context(gpu, torch)
    yield OwnedTerm("context", context.likely, context.low, context.high, what, _ASSUMED)
    if layout.num_gpus > 1:
        what = "what NCCL holds for its kernels and channels, outside of PyTorch's memory"
        nccl = find_nccl(gpu, torch, layout.num_gpus)
        yield OwnedTerm("NCCL", nccl.likely, nccl.low, nccl.high, what, _NCCL)


def _assumptions(config: Config, recipe: Recipe, torch: tuple[int, int]) -> tuple[str, ...]:
    """Which program was played, where there is a choice."""
    major, minor = torch
    mode = "torch.compile" if recipe.compiled else "eager mode"
    lines = [
        f"PyTorch {major}.{minor}, {mode}, its default allocator settings",
        "every sample of a batch has the same length",
        f"the optimizer is {find_optimizer(recipe.optimizer).what}",
    ]
    way = recipe.checkpointing
    if way == "full":
        lines.append("each block is checkpointed, as gradient_checkpointing_enable() does it")
    elif way == "alternate":
        lines.append("checkpoints keep every second output of aten.mm, and those of attention")
    elif way == "selective":
        lines.append("checkpoints keep the outputs of aten.mm, addmm, bmm and attention")
    elif way != "none":
        lines.append(f"blocks {way}, {2 * int(way)}, ... are checkpointed")
    if recipe.lora is not None:
        lines += describe_adapters(recipe)
    if recipe.library != "transformers":
        lines.append(f"model, adapters and loss are {recipe.library}'s code")
    if recipe.compiled:
        lines.append(
            "compiled, element-wise results are recomputed but for inputs of matrix products, as "
            "torch.compile's partitioner has it; convolutions and norms of images are as in eager "
            "mode"
        )
    lines += _of_precision(recipe)
    if config.model_type == COUNTED:
        lines.append(
            "of a number of parameters only these, gradients and states are counted: activations, "
            "inputs, buffers and workspaces take a config.json to be known"
        )
    lines += _of_layout(recipe.layout)
    if text_part(config, MODELS).inside != config.inside:
        others = ", ".join(other_parts(config)) or "none"
        lines.append(f"the text part is trained alone; parts that are not counted: {others}")
    if recipe.keeps_gradients:
        lines.append("gradients stay from step to step: zero_grad(set_to_none=False)")
    return tuple(lines)


def _of_precision(recipe: Recipe) -> list[str]:
    """The copies that mixed precision keeps, and the treatment of the loss."""
    lines = []
    layout = recipe.layout
    if recipe.has_masters and layout.num_shards > 1:
        lines.append(
            "shards, their gradients and states are float32, what is gathered is in 16 bits: "
            "FSDP2's MixedPrecisionPolicy(reduce_dtype=torch.float32)"
        )
    elif recipe.has_masters:
        ways = {"same": "in 16 bits", "fp32": "in float32", "both": "in both at the step"}
        lines.append(
            f"the optimizer steps a copy of the parameters in float32; gradients are "
            f"{ways[recipe.gradients]}"
        )
    if recipe.loss_kind == "chunked":
        lines.append("the loss is computed in eight chunks of tokens, whose logits all stay")
    elif recipe.loss_kind == "fused":
        lines.append("head and loss are Liger Kernel's fused_linear_cross_entropy")
    return lines


def _of_layout(layout: Layout) -> list[str]:
    """Whose way of dividing it was played."""
    lines = []
    if layout.num_shards == 1 and layout.num_replicas > 1 and layout.buckets != "copies":
        way = {"views": "gradients lie in DDP's buckets", "none": "gradients have no buckets"}
        lines.append(way[layout.buckets])
    if layout.sequence:
        lines.append("norms and residuals are divided by SequenceParallel, the logits gathered")
    if layout.ring is not None:
        lines.append(
            f"the sequence is divided by torch's context_parallel; this is rank {layout.ring.rank} "
            f"of {layout.context}, which needs most"
        )
    if layout.nvme:
        lines.append("DeepSpeed's ZeRO-Infinity keeps buffers by its defaults; it is not played")
    if layout.expert > 1:
        lines.append(
            "experts are dispatched by transformers' all_to_all, each chosen equally often"
        )
    return lines
