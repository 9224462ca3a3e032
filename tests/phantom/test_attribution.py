"""Owners against the truth: what each reference program knows of its own storages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.attribution.judge import Owner, Peak, judge, shuffle
from benchmarks.attribution.programs import PROGRAMS, Program, missing_packages, run_program

from ullage.log.model import Category

pytestmark = pytest.mark.phantom
FindPeak = Callable[[Program], Peak]

CATEGORY_FRAC = 0.98
MODULE_FRAC = 0.95
UNKNOWN_FRAC = 0.02
# What each program is there for: without it at the peak, the judgement would say nothing about it.
AT_PEAK = {
    "checkpointed": Category.ACTIVATION,
    "cnn": Category.BUFFER,
    "ddp": Category.COMMUNICATION,
    "fsdp2": Category.COMMUNICATION,
    "generation": Category.KV_CACHE,
    "own_cache": Category.KV_CACHE,
    "eager": Category.INPUT,
    "eight_bit": Category.OPTIMIZER_STATE,
    "lora": Category.PARAMETER,
}


@pytest.fixture(scope="session")
def find_peak(thin_python: Path, tmp_path_factory: pytest.TempPathFactory) -> FindPeak:
    """The peak of a program; it runs once a session."""
    done: dict[str, Peak] = {}

    def find(program: Program) -> Peak:
        missing = missing_packages(program, thin_python)
        if missing:
            pytest.skip(f"{program.label} needs {', '.join(missing)}, which is not installed")
        if program.label not in done:
            directory = tmp_path_factory.mktemp(program.name)
            done[program.label] = run_program(program, thin_python, directory)
        return done[program.label]

    return find


# Of programs that differ in how one thing is done, one runs by day.
NIGHTLY = {"checkpointed reentrant", "ddp view", "autocast", "autocast float16", "own_cache", "moe"}
each_program = pytest.mark.parametrize(
    "program",
    [
        pytest.param(one, marks=pytest.mark.nightly if one.label in NIGHTLY else ())
        for one in PROGRAMS
    ],
    ids=lambda program: program.label,
)
slow_programs = pytest.mark.slow(only=("checkpointed", "ddp", "fsdp2", "generation"))


@slow_programs
@each_program
def test_nearly_all_bytes_of_the_peak_have_their_true_category(
    find_peak: FindPeak, program: Program
) -> None:
    found = judge(find_peak(program))
    assert found.category_frac >= CATEGORY_FRAC, found.wrong_categories[:5]


@slow_programs
@each_program
def test_nearly_all_bytes_of_the_peak_have_their_true_module(
    find_peak: FindPeak, program: Program
) -> None:
    found = judge(find_peak(program))
    assert found.module_frac >= MODULE_FRAC, found.wrong_modules[:5]


@slow_programs
@each_program
def test_the_program_knows_the_owners_of_nearly_all_bytes(
    find_peak: FindPeak, program: Program
) -> None:
    assert judge(find_peak(program)).unknown_frac < UNKNOWN_FRAC


@slow_programs
@each_program
def test_owners_dealt_out_at_random_are_refused(find_peak: FindPeak, program: Program) -> None:
    found = judge(shuffle(find_peak(program)))
    assert found.category_frac < CATEGORY_FRAC / 2
    assert found.module_frac < MODULE_FRAC / 2


@slow_programs
@each_program
def test_the_peak_holds_what_the_program_is_there_for(
    find_peak: FindPeak, program: Program
) -> None:
    peak = find_peak(program)
    wanted = AT_PEAK.get(program.name, Category.ACTIVATION)
    if "view" in program.flags:  # then the buckets are the gradients
        wanted = Category.GRADIENT
    size = sum(
        int(size)
        for size, owner in zip(peak.size_bytes, peak.truth, strict=True)
        if owner.categories == {wanted}
    )
    assert size > 0


def test_a_category_that_is_not_said_of_it_is_wrong(find_peak: FindPeak) -> None:
    peak = find_peak(PROGRAMS[0])
    answer = tuple(replace(owner, categories=frozenset({Category.BUFFER})) for owner in peak.answer)
    buffers = sum(
        int(size)
        for size, owner in zip(peak.size_bytes, peak.truth, strict=True)
        if owner.categories == {Category.BUFFER}
    )
    assert judge(Peak(peak.size_bytes, peak.truth, answer)).category_bytes == buffers


def test_a_block_whose_owner_the_program_does_not_know_is_wrong(find_peak: FindPeak) -> None:
    peak = find_peak(PROGRAMS[0])
    truth = tuple(Owner(frozenset(), None, has_module=False) for _ in peak.truth)
    found = judge(Peak(peak.size_bytes, truth, peak.answer))
    assert found.category_bytes == found.module_bytes == 0
    assert found.unknown_bytes == found.peak_bytes
