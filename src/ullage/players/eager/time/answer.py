"""The time of a step in an answer of `ullage estimate`.

answer = add_time(answer, config, find_gpu("h100-80gb"), price=2.5, interconnect="nvlink+400Gb/s")
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from ullage.clock.interconnect import Interconnect, parse_interconnect
from ullage.clock.price import find_expense
from ullage.facts.gpus import Gpu, load_catalog
from ullage.ground.errors import SpecError
from ullage.players.eager.time.step_log import Program
from ullage.players.eager.time.training import (
    check_recipe,
    lay_out_step,
    time_program,
    time_training,
)
from ullage.players.eager.training.layout import ALONE

if TYPE_CHECKING:
    from ullage.facts.families.config import Config
    from ullage.facts.gpus.gpu import Entry
    from ullage.players.eager.training.answer import Answer, GpuRow
    from ullage.players.eager.training.recipe import Recipe


def add_time(
    answer: Answer, config: Config, gpu: Entry | None, price: float | None,
    interconnect: str | None,
) -> Answer:  # fmt: skip
    """The answer with the time of a step, on its GPU and on those that were ranked.

    Raises:
        SpecError: there is no GPU, it is not known well enough, or nothing is known of the time.
    """
    recipe = answer.estimate.recipe
    links = None if interconnect is None else parse_interconnect(interconnect)
    if gpu is None and not answer.gpus:
        raise SpecError("time: on which GPU? name one with gpu")
    if gpu is not None and not isinstance(gpu, Gpu):
        raise SpecError(
            f"time: found {gpu.slug}, of which only memory is known; expected a GPU of "
            "`ullage gpus` with rates"
        )
    check_recipe(config, recipe)
    time = None if gpu is None else time_training(config, recipe, gpu, links)
    expense = None
    if time is not None and price is not None:
        expense = find_expense(time, price, recipe.layout.num_gpus)
    rows = tuple(_time_rows(answer.gpus, config, recipe, links))
    return replace(answer, time=time, expense=expense, gpus=rows)


def _time_rows(
    rows: Iterable[GpuRow], config: Config, recipe: Recipe, links: Interconnect | None
) -> Iterable[GpuRow]:
    """Each GPU that the job fits, with the time of a step."""
    # GPUs that launch the same kernels share the play.
    catalog = {gpu.slug: gpu for gpu in load_catalog()}
    programs: dict[object, Program] = {}
    for row in rows:
        gpu = catalog[row.gpu]
        if row.count is None:
            yield row
            continue
        how = recipe
        if recipe.layout == ALONE and row.count > 1:
            how = replace(recipe, layout=replace(ALONE, data=row.count, sharding="fsdp"))
        key = (gpu.compute_capability, gpu.num_multiprocessors, row.count)
        if key not in programs:
            programs[key] = lay_out_step(config, how, gpu)
        yield replace(row, step_s=time_program(programs[key], how, gpu, links).step)
