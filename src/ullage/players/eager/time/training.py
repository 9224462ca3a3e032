"""How long a step of training takes, from the configuration alone.

time_training(config, Recipe(batch=8, length=1024), find_gpu("h100-80gb")).step

The step that `ullage estimate` plays for its memory is played with its kernels noted down; each of
them costs what the clock would say of it in a run of the program (costs.py), and the clock plays
them: streams, what the host needs for each, and the ranks' collectives beside the computation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ullage.clock.host import HOST_COSTS
from ullage.clock.interconnect import Interconnect, default_interconnect
from ullage.clock.step import Batch, measure_step
from ullage.facts.families.config import COUNTED, Config
from ullage.facts.gpus import Gpu
from ullage.ground.errors import SpecError
from ullage.players.eager.time.costs import kernel_cost, product_call
from ullage.players.eager.time.optimizers import clip_kernels, optimizer_kernels
from ullage.players.eager.time.step_log import Program, lay_out
from ullage.players.eager.training.devices import machine_of
from ullage.players.eager.training.eager.kernels import Kernel, Kind
from ullage.players.eager.training.loop import play_training
from ullage.players.eager.training.torch_version import choose_torch

if TYPE_CHECKING:
    from ullage.clock.step_time import StepTime
    from ullage.players.eager.training.recipe import Recipe


def time_training(
    config: Config, recipe: Recipe, gpu: Gpu, links: Interconnect | None = None
) -> StepTime:
    """The time of a step on a GPU.

    Counts: every kernel of the model, its loss and the optimizer; the collectives of FSDP2, DDP
    and tensor parallelism, and what of them runs beside the computation; the host.
    Ignores: loading data, logging, other work of the program; recompilation.
    Error: docs/results/time.md, against `ullage run --time` of the same step.

    Raises:
        SpecError: the recipe cannot be, or nothing is known of its time.
    """
    program = lay_out_step(config, recipe, gpu)
    return time_program(program, recipe, gpu, links)


def lay_out_step(config: Config, recipe: Recipe, gpu: Gpu) -> Program:
    """The kernels of a step, in order.

    Raises:
        SpecError: the recipe cannot be, or nothing is known of its time.
    """
    check_recipe(config, recipe)
    machine = machine_of(gpu, choose_torch(recipe.torch, gpu.compute_capability))
    played = play_training(config, recipe, machine, is_timed=True)
    optimizer: list[Kernel] = []
    for trained in played.trained:
        optimizer += clip_kernels(trained) if recipe.clips_gradients else ()
        optimizer += optimizer_kernels(recipe.optimizer, trained)
    layout = recipe.layout
    if layout.sharding == "zero1" and layout.num_replicas > 1:
        # Each rank hands its parameters to the others.
        num_bytes = sum(each.numel * each.itemsize for each in played.trained) * layout.data
        ranks = (layout.num_replicas,)
        optimizer.append(Kernel(Kind.COLLECTIVE, (num_bytes,), ranks, name="broadcast", stream=2))
        optimizer += (Kernel(Kind.RECORD, stream=2), Kernel(Kind.WAIT, numbers=(2,)))
    num_replicas = layout.num_replicas if layout.num_shards == 1 else 1
    return lay_out(played, optimizer, recipe.accumulation, num_replicas)


def check_recipe(config: Config, recipe: Recipe) -> None:
    """Refuses what the play has no kernels of.

    Raises:
        SpecError: nothing is known of its time.
    """
    layout = recipe.layout
    reasons = {
        "a number of parameters without a configuration": config.model_type == COUNTED,
        "compiled programs": recipe.compiled,
        "pipeline parallelism": layout.pipeline > 1,
        "context parallelism": layout.context > 1,
        "expert parallelism": layout.expert > 1,
        "shards in host memory": layout.offload,
        "Megatron's code": recipe.library == "megatron",
        "fused losses": recipe.loss_kind == "fused",
        "optimizers that step in the backward pass": recipe.steps_in_backward,
        "quantized weights": recipe.lora is not None and recipe.lora.is_quantized,
    }
    for what, is_there in reasons.items():
        if is_there:
            raise SpecError(
                f"time: found {what}, of which no closed form is known; leave out --time, or time "
                "the program with `ullage run --time`"
            )


def time_program(
    program: Program, recipe: Recipe, gpu: Gpu, links: Interconnect | None = None
) -> StepTime:
    """The time of a step whose kernels are known."""
    links = links or default_interconnect()
    costs = [
        kernel_cost(gpu, kernel, links, _num_local(kernel, recipe, links))
        for kernel in program.kernels
    ]
    works = [product_call(each) if each.kind is Kind.PRODUCT else each for each in program.kernels]
    tokens = recipe.batch * recipe.accumulation * (recipe.length or 0)
    time = measure_step(
        program.log,
        gpu,
        works,
        costs,
        HOST_COSTS,
        modules=program.modules,
        batch=Batch(recipe.batch * recipe.accumulation, tokens // recipe.layout.tensor),
        num_ranks=recipe.layout.num_gpus,
        basis=_basis(recipe),
    )
    if time is None:
        raise SpecError("time: found a step without work, expected a model with parameters")
    return time


def _num_local(kernel: Kernel, recipe: Recipe, links: Interconnect) -> int:
    """How many GPUs of a collective's group share a machine: the ranks of a tensor-parallel group
    sit side by side, those that have the same part of the model are as many GPUs apart.
    """
    if kernel.kind is not Kind.COLLECTIVE or not kernel.stream:
        return 0
    return min(kernel.numbers[0], max(1, links.gpus_per_machine // recipe.layout.tensor))


def _basis(recipe: Recipe) -> Iterator[str]:
    yield "the kernels of PyTorch's eager mode, played from the configuration, not run"
    if recipe.layout.num_replicas > 1 and recipe.accumulation > 1:
        yield "of accumulated passes the last one alone sums gradients (no_sync)"
