"""A forward pass without gradients, played on tensors without values.

    passed = play_pass(machine, lambda arena: VAE(arena, config, recipe), run)
    passed.weight_bytes, passed.working          # run(arena, model) makes the inputs itself

The models and operators are those of players/eager/training, which the phantom was compared with;
the pass records nothing for a backward pass, and no layer is in training mode.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from ullage.facts.gpus.catalog import find_entry
from ullage.players.eager.term import Interval, Term
from ullage.players.eager.training.devices import find_context, machine_of
from ullage.players.eager.training.eager.arena import Arena
from ullage.players.eager.training.eager.machine import Machine
from ullage.players.eager.training.torch_version import choose_torch
from ullage.players.eager.training.totals import count_totals
from ullage.players.eager.workloads.answer import Place

if TYPE_CHECKING:
    from ullage.facts.gpus.gpu import Entry
    from ullage.players.eager.training.eager.module import Module

M = TypeVar("M", bound="Module")


# A block whose rest would be below 1 MiB is given whole. Of the runs in
# docs/results/estimates.md all are within this share of the replayed figure.
_ROUNDING_FRAC: Final = 0.02


@dataclass(frozen=True, slots=True)
class Pass:
    """Bytes of a pass.

    Attributes:
        weight_bytes: parameters and buffers.
        module_bytes: the largest module that holds weights itself.
        working: the most above the weights, inputs included: low, likely, high; they differ where
            a closed library decides of a workspace.
        weight_rounding_bytes, rounding_bytes: what the allocator's blocks are larger by, of the
            weights alone, and of both at the peak.
    """

    weight_bytes: int
    module_bytes: int
    working: Interval
    weight_rounding_bytes: int
    rounding_bytes: int


def device_and_machine(gpu: str | Entry | None) -> tuple[Entry | None, Machine]:
    """A GPU of the catalogue, and what PyTorch takes from its kind; None: an H100's rules."""
    if gpu is None:
        return None, Machine()
    device = find_entry(gpu) if isinstance(gpu, str) else gpu
    return device, machine_of(device, choose_torch(None, device.compute_capability))


def context_term(device: Entry, machine: Machine) -> Term:
    """The driver's context, which is outside of PyTorch's allocator: assumed.

    Counts: the catalogue's figure. Ignores: other processes. Error: between its two ends.
    Source: facts/gpus/catalog.toml.
    """
    context = find_context(device, machine.torch)
    what = "the driver's, with PyTorch's kernels"
    return Term("context", context.likely, context.low, context.high, what, "catalogue of GPUs")


def make_place(device: Entry | None, machine: Machine, rounding: int, terms: list[Term]) -> Place:
    """The GPU with its parts, its driver's context, and blocks that the allocator gives whole, up
    to 1 MiB above the request each.

    Counts: what a replay of the allocator comes to as `rounding`, and at most 2 % more.
    Ignores: segments that are kept empty.
    Error: that share is of the runs in docs/results/estimates.md.
    Source: c10/cuda/CUDACachingAllocator.cpp.
    """
    most = rounding + int(_ROUNDING_FRAC * sum(term.high_bytes for term in terms))
    what = "blocks that are given whole"
    terms.append(Term("block rounding", rounding, 0, most, what, "replayed"))
    if device is not None:
        terms.append(context_term(device, machine))
    return Place("GPU", None if device is None else device.total_bytes, tuple(terms))


def play_pass(
    machine: Machine, build: Callable[[Arena], M], run: Callable[[Arena, M], object]
) -> Pass:
    """Builds a model and runs it once.

    Counts: every tensor of the library's code and of PyTorch's operators, and workspaces.
    Ignores: cached segments.
    Error: docs/results/estimates.md.
    Source: transformers 5.23, modeling_whisper.py and modeling_clip.py; diffusers 0.42,
    unet_2d_condition.py, dit_transformer_2d.py and autoencoder_kl.py.

    Args:
        machine: the GPU and its PyTorch.
        build: makes the model in an arena.
        run: makes the inputs and calls the model; what it returns is the output.
    """
    arena = Arena(machine)
    arena.is_training = False
    arena.begin("build")
    model = build(arena)
    arena.begin("forward")
    loaded = count_totals(arena.log).end
    with arena.recording(is_on=False):
        output = run(arena, model)
    totals = count_totals(arena.log)
    del output
    peak, weights = totals.peak, loaded.requested_bytes
    rounding = peak.allocated_bytes - peak.requested_bytes
    least = min(totals.low_bytes, peak.requested_bytes)
    most = max(totals.high_bytes - rounding, peak.requested_bytes)
    return Pass(
        weights,
        _largest(model),
        Interval(*(size - weights for size in (least, peak.requested_bytes, most))),
        loaded.allocated_bytes - weights,
        rounding,
    )


def _largest(module: Module) -> int:
    """Bytes of the weights that one module holds itself, the most of any."""
    from ullage.log.category import Category
    from ullage.players.eager.training.eager.tensor import Tensor

    own = sum(
        value.nbytes
        for value in vars(module).values()
        if isinstance(value, Tensor) and value.storage.category is Category.PARAMETER
    )
    return max([own, *(_largest(child) for _, child, _ in module.children())])
