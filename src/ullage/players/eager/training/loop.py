"""A training loop, played on tensors without values: build, forward, backward, optimizer step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Final, NamedTuple

from ullage.facts.families.architecture import text_part
from ullage.facts.families.config import Config
from ullage.log.category import Category
from ullage.players.eager.training.architectures import MODELS, build_model
from ullage.players.eager.training.architectures.model import Model
from ullage.players.eager.training.division import divide
from ullage.players.eager.training.eager.arena import Arena, Log, Section, Storage
from ullage.players.eager.training.eager.autograd import backward
from ullage.players.eager.training.eager.dtype import FLOAT32, DType, find_dtype
from ullage.players.eager.training.eager.functional import scale
from ullage.players.eager.training.eager.kernels import Kernel, Recorder, Trained
from ullage.players.eager.training.eager.machine import Machine
from ullage.players.eager.training.eager.module import Embedding, Module
from ullage.players.eager.training.eager.tensor import Tensor, empty
from ullage.players.eager.training.layout import ALONE
from ullage.players.eager.training.lora import add_adapters, retains_inputs
from ullage.players.eager.training.optimizers import (
    MATRICES,
    Optimizer,
    Run,
    clip_gradients,
    find_optimizer,
)
from ullage.players.eager.training.recipe import PRECISIONS, Recipe
from ullage.players.eager.training.spread import Spread
from ullage.players.eager.training.totals import StepTotals, count_totals

# Mixed precision in which the optimizer has parameters of its own, in float32: as Megatron,
# DeepSpeed and Apex have it.


def make_masters(arena: Arena, trained: list[tuple[Tensor, int]]) -> list[tuple[Tensor, int]]:
    """A copy in float32 of each parameter that is trained, which the optimizer steps instead."""
    masters = []
    for count, rows in groupby(trained, key=lambda row: row[1]):
        with arena.section("masters", "build", count):
            for tensor, _ in rows:
                master = empty(arena, tensor.shape, FLOAT32, Category.OPTIMIZER_STATE)
                master.needs_grad = True
                arena.log.owners[master.storage.index] = tensor.storage.index
                masters.append((master, count))
    return masters


def sum_in_float32(arena: Arena, parameters: list[tuple[Tensor, int]]) -> list[Tensor]:
    """Gradients in float32, which stay, and into which those of the parameters are summed as soon
    as they are there: main_grad of Megatron.
    """
    gradients = []
    for count, rows in groupby(parameters, key=lambda row: row[1]):
        with arena.section("gradients", "build", count):
            gradients += [
                empty(arena, tensor.shape, FLOAT32, Category.GRADIENT)
                for tensor, _ in rows
                if tensor.needs_grad
            ]
    arena.steps_with = lambda _: None
    return gradients


# Before this version cuBLAS keeps a workspace for each thread that has multiplied with it: that of
# the forward pass and that of the backward pass.
_WORKSPACES_END: Final = (2, 15)
_THREADS: Final = 2
_SCALER_STATES = 2  # GradScaler's scale and growth tracker


class Played(NamedTuple):
    """A loop that was played.

    Attributes:
        log: a step, once the optimizer has its states.
        num_parameters: parameters of the whole model; shared ones count once.
        num_trainable: parameters that the optimizer changes.
        num_rank_parameters: parameters that this rank keeps.
        host_bytes: bytes of host memory, where shards and states are kept there.
        num_passes: passes of the step that were played.
        kernels: what was launched, by positions in the log; empty: nobody asked.
        trained: what the optimizer steps, by type; empty: nobody asked.
    """

    log: Log
    num_parameters: int
    num_trainable: int
    num_rank_parameters: int
    host_bytes: int
    num_passes: int
    kernels: tuple[tuple[int, Kernel], ...] = ()
    trained: tuple[Trained, ...] = ()

    @property
    def totals(self) -> StepTotals:
        """The totals: a pass over the whole program."""
        return count_totals(self.log)


def play_training(
    config: Config, recipe: Recipe, machine: Machine, *, is_timed: bool = False
) -> Played:
    """A step of the training loop, once the optimizer has its states.

    Counts: every tensor of the model's library, PyTorch's operators and engine, and the optimizer.
    Ignores: a program's own tensors.
    Error: docs/results/estimates.md: of the peak 0.01 % in the median, 2.2 % at worst.
    Source: torch/csrc/autograd/engine.cpp, and the files that architectures and operators name.

    Args:
        is_timed: note what is launched.

    Raises:
        SpecError: the model or the recipe cannot be.
    """
    config = text_part(config, MODELS)
    arena = _make_arena(recipe, machine)
    recorder = arena.recorder = Recorder(arena.log) if is_timed else None
    arena.begin("build")
    stored = FLOAT32 if recipe.has_masters else find_dtype(PRECISIONS[recipe.precision][0])
    spread = Spread(arena, recipe.layout, stored)
    model = build_model(arena, divide(config, recipe), recipe)
    spread.cut(model, recipe)
    if recipe.layout.context > 1 and recipe.length is not None:
        recipe = replace(recipe, length=recipe.length // recipe.layout.context)
    if recipe.lora is not None:
        add_adapters(arena, model, recipe)
    parameters = _unique(model)
    spread.begin(model, parameters)
    unused = {id(tensor) for module in model.unseen for tensor, _ in module.parameters()}
    stepped = [row for row in parameters if id(row[0]) not in unused]
    trained = [(tensor, count) for tensor, count in spread.own(stepped) if tensor.needs_grad]
    if recipe.has_masters and spread.sharding is None:
        trained = make_masters(arena, trained)
    steps = list(_assign(recipe, model, trained))
    states = _prepare_all(arena, recipe, trained, steps)
    if recipe.gradients == "fp32" and spread.sharding is None:
        states += sum_in_float32(arena, parameters)
    num_passes = min(_count_passes(arena, recipe), 2)
    if recorder is not None:
        recorder.is_causal = model.is_decoder
        recorder.clear()
    left = _play_passes(spread, model, recipe)
    arena.recorder = None  # the optimizer's kernels are known by their lists
    arena.log.modules = dict(model.scopes())
    _step(arena, recipe, trained, steps)
    played = Played(
        arena.log.freeze(),
        *_count(_all_parameters(config, recipe, machine) or parameters),
        spread.count(parameters),
        spread.host_bytes(parameters, find_optimizer(recipe.optimizer)),
        num_passes,
        () if recorder is None else tuple(recorder.finish()),
        _list_trained(trained) if is_timed else (),
    )
    del states, left  # until here they are there
    return played


def _make_arena(recipe: Recipe, machine: Machine) -> Arena:
    return Arena(
        machine,
        checkpoints_every=recipe.checkpoints_every,
        is_selective=recipe.checkpointing in ("selective", "alternate"),
        is_compiled=recipe.compiled,
        keeps_alternate=recipe.checkpointing == "alternate",
        is_attention_eager=recipe.attention == "eager",
    )


def _step(
    arena: Arena,
    recipe: Recipe,
    trained: list[tuple[Tensor, int]],
    steps: list[tuple[Optimizer, list[Run]]],
) -> None:
    arena.begin("optimizer")
    copies: list[Storage] = []
    if recipe.clips_gradients:
        clip_gradients(arena, [run for _, runs in steps for run in runs])
    if recipe.gradients == "both":
        sizes = [FLOAT32.itemsize * tensor.numel * count for tensor, count in trained]
        copies += [arena.take(size, Category.GRADIENT) for size in sizes]
    if not recipe.steps_in_backward:
        for optimizer, runs in steps:
            optimizer.step(arena, runs)


def _all_parameters(
    config: Config, recipe: Recipe, machine: Machine
) -> list[tuple[Tensor, int]] | None:
    """Parameters of the whole model, where a rank builds only a part of it; else None."""
    layout = recipe.layout
    if layout.tensor == layout.pipeline == layout.expert == 1:
        return None
    arena = Arena(machine)
    model = build_model(arena, config, replace(recipe, layout=ALONE))
    if recipe.lora is not None:
        add_adapters(arena, model, recipe)
    return _unique(model)


def _list_trained(trained: list[tuple[Tensor, int]]) -> tuple[Trained, ...]:
    rows = []
    for dtype in dict.fromkeys(tensor.dtype for tensor, _ in trained):
        own = [(tensor.numel, count) for tensor, count in trained if tensor.dtype is dtype]
        numel = sum(size * count for size, count in own)
        rows.append(Trained(numel, dtype.itemsize, dtype.name, sum(count for _, count in own)))
    return tuple(rows)


def _count(parameters: list[tuple[Tensor, int]]) -> tuple[int, int]:
    """The number of parameters, and that of trained ones."""
    return (
        sum(tensor.numel * count for tensor, count in parameters),
        sum(tensor.numel * count for tensor, count in parameters if tensor.needs_grad),
    )


def _prepare_all(
    arena: Arena,
    recipe: Recipe,
    trained: list[tuple[Tensor, int]],
    steps: list[tuple[Optimizer, list[Run]]],
) -> list[Tensor | Storage]:
    """Prepares what the first step leaves for all that follow: states, and gradients that stay."""
    if recipe.keeps_gradients:
        for tensor, count in trained:
            with arena.section("gradients", "build", count):
                tensor.grad = tensor.like()
                tensor.grad.storage.own(Category.GRADIENT)
    arena.log.zeroes_late = recipe.zeroes_late and not recipe.keeps_gradients
    if not any(optimizer.is_prepared_at_once for optimizer, _ in steps):
        arena.begin("states")  # in a program they come after the first backward pass
    states = [state for optimizer, runs in steps for state in _prepare(arena, optimizer, runs)]
    states += [arena.take(4) for _ in range(_SCALER_STATES * _autocast(recipe)[1])]
    if arena.machine.torch < _WORKSPACES_END:
        size = arena.blas_workspace_bytes
        states += [arena.take(size, Category.WORKSPACE) for _ in range(_THREADS)]
        arena.blas_workspace_bytes = 0
    return states


def _play_passes(spread: Spread, model: Model, recipe: Recipe) -> object:
    """Forward and backward, twice with gradient accumulation: the second represents the rest.

    Returns what the loop's variables refer to when the optimizer steps: the batch and the loss;
    those of the previous step stay until new ones replace them.
    """
    arena = spread.arena
    dtype, is_scaled = _autocast(recipe)
    if recipe.steps_in_backward:
        optimizer = find_optimizer(recipe.optimizer)
        arena.steps_with = lambda tensor: optimizer.step(arena, [Run(1, [tensor])])
    inputs: tuple[Tensor, ...] = ()
    loss: Tensor | None = None
    in_flight = []  # what passes in flight hold
    before: list[tuple[Section | None, Tensor]] = []  # what the last loss's graph retains
    for is_held in spread.passes(_count_passes(arena, recipe)):
        arena.begin("batch")
        inputs = model.inputs(arena, recipe)
        arena.begin("forward")
        spread.before_forward()
        with arena.autocasting(dtype):
            loss = spread.run(model, inputs)
        arena.drop(before)
        before, arena.retained = arena.retained, []
        if is_held:
            in_flight.append((inputs, loss))
            continue
        arena.begin("backward")
        spread.before_backward()
        backward(scale(loss) if is_scaled else loss)
        spread.after_backward()
    for _, waiting in in_flight:
        arena.begin("backward")
        spread.before_backward()
        backward(waiting)
        spread.after_backward()
    spread.after_passes(model)
    return inputs, loss, before


def _count_passes(arena: Arena, recipe: Recipe) -> int:
    """A second pass is played as well where the graph of the last step stays."""
    lora = recipe.lora
    is_retained = lora is not None and lora.is_quantized and retains_inputs(arena)
    return max(recipe.accumulation, 2) if is_retained else recipe.accumulation


def _autocast(recipe: Recipe) -> tuple[DType | None, bool]:
    """The dtype of autocast, and whether the loss is scaled for it."""
    name = PRECISIONS[recipe.precision][1]
    return (None if name is None else find_dtype(name)), name == "float16"


def _assign(
    recipe: Recipe, model: Model, trained: list[tuple[Tensor, int]]
) -> list[tuple[Optimizer, list[Run]]]:
    optimizer = find_optimizer(recipe.optimizer)
    if optimizer.rest is None:
        return [(optimizer, _runs(trained))]
    inside = {id(tensor) for stack in model.stacks for tensor, _ in stack.parameters()}
    looked_up = set(_embeddings(model))
    parts: tuple[list[tuple[Tensor, int]], list[tuple[Tensor, int]]] = ([], [])
    for row in trained:
        is_matrix = len(row[0].shape) == 2 and id(row[0]) in inside
        is_own = is_matrix if optimizer.part == MATRICES else id(row[0]) not in looked_up
        parts[not is_own].append(row)
    return [(optimizer, _runs(parts[0])), (optimizer.rest, _runs(parts[1]))]


def _embeddings(module: Module) -> Iterator[int]:
    """Their weights, which a head that is tied to one shares."""
    if isinstance(module, Embedding):
        yield id(module.weight)
    for _, child, _ in module.children():
        yield from _embeddings(child)


def _runs(parameters: list[tuple[Tensor, int]]) -> list[Run]:
    """Runs of consecutive parameters that the model has equally often."""
    return [
        Run(count, [tensor for tensor, _ in rows])
        for count, rows in groupby(parameters, key=lambda row: row[1])
    ]


def _prepare(arena: Arena, optimizer: Optimizer, runs: list[Run]) -> list[Tensor | Storage]:
    states: list[Tensor | Storage] = [
        arena.take(nbytes, Category.OPTIMIZER_STATE) for nbytes in optimizer.shared_bytes
    ]
    for repeats, parameters in runs:
        with arena.section("states", "build", repeats):
            for parameter in parameters:
                begin = len(states)
                states += optimizer.prepare(parameter)
                for state in states[begin:]:
                    storage = state.storage if isinstance(state, Tensor) else state
                    arena.log.owners[storage.index] = parameter.storage.index
    return states


def _unique(model: Model) -> list[tuple[Tensor, int]]:
    """Each parameter once, and how many like it the real model has."""
    unique = {id(tensor): (tensor, count) for tensor, count in model.parameters()}
    return list(unique.values())
