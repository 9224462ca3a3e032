"""Inductor's timing of kernels is counted; the program's own modules stand for torch's."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ullage.record.values import autotune

HEURISTICS = "torch._inductor.runtime.triton_heuristics"
PAD_MM = "torch._inductor.fx_passes.pad_mm"


@pytest.fixture
def notes() -> list[tuple[str, int, str]]:
    return []


@pytest.fixture
def inductor(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The modules of Inductor that time kernels, as far as they are watched."""

    class CachingAutotuner:
        def autotune_to_one_config(self, *_args: Any) -> str:
            return "timed"

        def coordinate_descent_tuning(self, launcher: str, *_args: Any) -> str:
            return launcher

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])  # what waits for others goes with it
    heuristics, pad_mm = ModuleType(HEURISTICS), ModuleType(PAD_MM)
    heuristics.CachingAutotuner = CachingAutotuner  # type: ignore[attr-defined]
    pad_mm.get_do_bench = lambda: "bench"  # type: ignore[attr-defined]
    for name, module in ((HEURISTICS, heuristics), (PAD_MM, pad_mm)):
        monkeypatch.setitem(sys.modules, name, module)
    return SimpleNamespace(tuner=CachingAutotuner(), pad_mm=pad_mm)


def test_each_timing_counts_and_gives_what_it_gave(
    inductor: SimpleNamespace, notes: list[tuple[str, int, str]]
) -> None:
    timed = autotune.install(lambda *note: notes.append(note))
    assert timed.count == 0
    assert inductor.tuner.autotune_to_one_config(1) == "timed"
    assert inductor.tuner.coordinate_descent_tuning("launcher") == "launcher"
    assert inductor.pad_mm.get_do_bench() == "bench"
    assert timed.count == 3


def test_a_torch_without_these_functions_is_watched_no_further(
    inductor: SimpleNamespace, notes: list[tuple[str, int, str]]
) -> None:
    del inductor.pad_mm.get_do_bench
    del type(inductor.tuner).coordinate_descent_tuning
    timed = autotune.install(lambda *note: notes.append(note))
    inductor.tuner.autotune_to_one_config()
    assert timed.count == 1
