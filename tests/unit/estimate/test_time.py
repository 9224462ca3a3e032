"""The time of a step from the configuration alone: its kernels, and what becomes of them."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

import ullage
from ullage.clock.step_time import StepTime
from ullage.facts.families.find import find_config
from ullage.facts.gpus import find_gpu
from ullage.ground.errors import SpecError
from ullage.players.eager.time.training import lay_out_step, time_training
from ullage.players.eager.training.eager.kernels import Kernel, Kind
from ullage.players.eager.training.eager.machine import Machine
from ullage.players.eager.training.estimate import estimate_training
from ullage.players.eager.training.layout import Layout
from ullage.players.eager.training.loop import play_training
from ullage.players.eager.training.recipe import Recipe

GPT2 = find_config("gpt2").config
LLAMA = find_config("llama-3.2-1b").config
H100 = find_gpu("h100-80gb")
SMALL = Recipe(batch=2, length=256)


def count(config: Any, recipe: Recipe) -> Counter[Kind]:
    """How many kernels of each kind a step has."""
    program = lay_out_step(config, recipe, H100)
    given = program.log.entries[program.log.entries["kind"] == 0]
    half = given[len(given) // 2 :]
    return Counter(program.kernels[number].kind for number in half["work"].tolist())


def products(config: Any, recipe: Recipe) -> list[Kernel]:
    program = lay_out_step(config, recipe, H100)
    return [kernel for kernel in program.kernels if kernel.kind is Kind.PRODUCT]


def seconds(config: Any = LLAMA, gpu: str = "h100-80gb", **fields: Any) -> StepTime:
    return time_training(config, replace(SMALL, **fields), find_gpu(gpu))


def test_products_and_attention_are_as_many_as_the_model_has() -> None:
    """GPT-2 has four products in each layer and the head, and two more of each in backward."""
    kinds = count(GPT2, SMALL)
    assert kinds[Kind.PRODUCT] == 3 * (4 * 12 + 1)
    assert kinds[Kind.ATTENTION] == 2 * 12
    # q, k, v, o, gate, up, down
    assert count(LLAMA, SMALL)[Kind.PRODUCT] == 3 * (7 * 16 + 1)


def test_products_come_to_the_work_of_the_estimate() -> None:
    program = lay_out_step(LLAMA, SMALL, H100)
    given = program.log.entries[program.log.entries["kind"] == 0]["work"].tolist()
    flops = 0
    for number in given:
        kernel = program.kernels[number]
        if kernel.kind is Kind.PRODUCT:
            rows, columns, length, batch = kernel.numbers
            flops += 2 * rows * columns * length * batch
    assert flops == 2 * estimate_training(LLAMA, SMALL).work


def test_a_checkpointed_layer_runs_again() -> None:
    plain, checkpointed = (
        count(LLAMA, replace(SMALL, checkpointing=way)) for way in ("none", "full")
    )
    # The last product of a layer is not needed again.
    assert checkpointed[Kind.PRODUCT] - plain[Kind.PRODUCT] == 6 * 16
    assert checkpointed[Kind.ATTENTION] - plain[Kind.ATTENTION] == 16


def test_noting_kernels_changes_no_memory() -> None:
    for recipe in (SMALL, replace(SMALL, layout=Layout(data=8, sharding="fsdp"))):
        plain = play_training(LLAMA, recipe, Machine())
        timed = play_training(LLAMA, recipe, Machine(), is_timed=True)
        assert plain.log.events == timed.log.events
        assert plain.log.requested == timed.log.requested


def test_the_time_is_an_interval_and_its_parts_add_up() -> None:
    time = seconds()
    low, likely, high = time.step
    assert 0 < low < likely < high
    whole = sum(kind.exposed.s for kind in time.categories) + time.device_idle.s
    assert whole == pytest.approx(likely, rel=1e-6)
    assert {part.name for part in time.parts} >= {"forward", "backward", "optimizer"}
    assert time.num_tokens == 2 * 256
    assert time.utilisation is not None
    assert time.tokens_per_s is not None


def test_more_work_takes_longer() -> None:
    one, two = (seconds(batch=batch, length=2048).step.s for batch in (2, 4))
    assert 1.3 * one < two < 2 * one
    plain, checkpointed = (
        seconds(batch=2, length=2048, checkpointing=way).step.s for way in ("none", "full")
    )
    assert 1.1 * plain < checkpointed < 1.4 * plain
    a100, h100 = (seconds(gpu=gpu, length=2048).step.s for gpu in ("a100-80gb", "h100-80gb"))
    assert a100 > 1.3 * h100


def test_accumulated_passes_repeat() -> None:
    one, two, five = (seconds(accumulation=number, length=2048) for number in (1, 2, 5))
    assert five.step.s - two.step.s == pytest.approx(3 * (two.step.s - one.step.s), rel=0.1)
    assert five.num_tokens == 5 * one.num_tokens


@pytest.mark.parametrize(
    ("layout", "names"),
    [
        (Layout(data=8), {"all-reduce"}),
        (Layout(data=8, sharding="fsdp"), {"all-gather", "reduce-scatter"}),
        (Layout(data=8, sharding="zero2"), {"all-gather", "reduce-scatter"}),
        (Layout(data=8, sharding="zero1"), {"all-reduce", "broadcast"}),
        (Layout(tensor=8), {"all-reduce", "all-gather"}),
    ],
)
def test_ranks_exchange(layout: Layout, names: set[str]) -> None:
    program = lay_out_step(LLAMA, replace(SMALL, layout=layout), H100)
    found = {kernel.name for kernel in program.kernels if kernel.kind is Kind.COLLECTIVE}
    assert found == names


def test_gradients_are_summed_whole() -> None:
    program = lay_out_step(LLAMA, replace(SMALL, layout=Layout(data=8)), H100)
    entries = program.log.entries[program.log.entries["kind"] == 0]["work"].tolist()
    kernels = [program.kernels[number] for number in entries]
    summed = sum(kernel.operands[0] for kernel in kernels if kernel.kind is Kind.COLLECTIVE)
    assert summed == 2 * 2 * estimate_training(LLAMA, SMALL).num_parameters  # steps, bytes


def test_communication_hides_behind_computation() -> None:
    time = seconds(batch=4, length=2048, layout=Layout(data=8, sharding="fsdp"))
    (kind,) = (kind for kind in time.categories if kind.name == "communication")
    assert kind.exposed.s < 0.5 * kind.busy.s
    time = seconds(length=2048, layout=Layout(tensor=8))
    (kind,) = (kind for kind in time.categories if kind.name == "communication")
    assert kind.exposed.s > 0.9 * kind.busy.s  # the next product waits for it


def test_replicas_of_divided_models_meet_over_the_network() -> None:
    """Eight GPUs that share a layer fill a machine, so that replicas are in others."""
    apart = seconds(layout=Layout(tensor=8, data=2), length=2048)
    alone = seconds(layout=Layout(tensor=8), length=2048)
    assert apart.step.s > alone.step.s


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"compiled": True}, "compiled"),
        ({"layout": Layout(pipeline=2)}, "pipeline"),
        ({"layout": Layout(context=2)}, "context"),
        ({"optimizer": "muon"}, "muon"),
        ({"loss": "fused"}, "fused"),
    ],
)
def test_what_is_not_known_is_refused(fields: dict[str, Any], word: str) -> None:
    with pytest.raises(SpecError, match=word):
        seconds(**fields)


def test_a_price_and_a_ranking() -> None:
    answer = ullage.estimate_training(
        "smollm2-135m", gpu="h100-80gb", batch=1, length=256, price=2.0
    ).answer
    assert answer.time is not None
    assert answer.expense is not None
    assert answer.expense.thousand_steps.likely == pytest.approx(
        answer.time.step.s * 1000 * 2 / 3600
    )
    with pytest.raises(SpecError, match="on which GPU"):
        ullage.estimate_training("gpt2", length=256, time=True)
    with pytest.raises(SpecError, match="interconnect"):
        ullage.estimate_training("gpt2", gpu="h100-80gb", length=256, interconnect="wet string")


def test_numpy_is_loaded_for_time_alone() -> None:
    code = (
        "import sys\nfrom ullage.cli import run_cli\n"
        "words = ['estimate', 'gpt2', '--length', '256', '--gpu', 'h100-80gb']\n"
        "run_cli(words)\nplain = 'numpy' in sys.modules\n"
        "run_cli([*words, '--time'])\nprint('\\n', plain, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split()[-2:] == ["False", "True"]
