"""Inductor's timing of kernels is counted; the program's own modules stand for torch's."""

from __future__ import annotations

import contextlib
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ullage.players.inside.patches import Patches
from ullage.players.inside.values import autotune

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


def install(notes: list[tuple[str, int, str]]) -> autotune.Timed:
    timed = autotune.Timed(lambda *note: notes.append(note))
    timed.install(Patches())
    return timed


def test_each_timing_counts_and_gives_what_it_gave(
    inductor: SimpleNamespace, notes: list[tuple[str, int, str]]
) -> None:
    timed = install(notes)
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
    timed = install(notes)
    inductor.tuner.autotune_to_one_config()
    assert timed.count == 1


class Graph:
    """What Inductor made of a graph, as far as it is looked at."""

    def __init__(self, **constants: object) -> None:
        self.constants = constants


def test_graphs_that_hold_a_choice_or_tensors_are_not_kept(
    inductor: SimpleNamespace, notes: list[tuple[str, int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = []

    class FxGraphCache:
        @staticmethod
        def _save_graph(key: str, _graph: Graph, *_others: object) -> None:
            saved.append(key)

    codecache = ModuleType("torch._inductor.codecache")
    codecache.FxGraphCache = FxGraphCache  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, codecache.__name__, codecache)
    install(notes)
    FxGraphCache._save_graph("first", Graph())
    inductor.pad_mm.get_do_bench()
    FxGraphCache._save_graph("with a choice", Graph())
    inductor.tuner.autotune_to_one_config()  # at its first launch, which is no part of the graph
    FxGraphCache._save_graph("with tensors", Graph(weight=1))
    FxGraphCache._save_graph("last", Graph())
    assert saved == ["first", "last"]


def test_a_program_that_clears_its_graphs_clears_those_of_its_run(
    inductor: SimpleNamespace,
    notes: list[tuple[str, int, str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """As torch's own does, shutil.rmtree refuses a link."""
    outlives, link = tmp_path / "graphs", tmp_path / "fxgraph"
    (outlives / "graph").mkdir(parents=True)
    link.symlink_to(outlives)

    class FxGraphCache:
        _get_tmp_dir = staticmethod(lambda: str(link))

        @staticmethod
        def clear() -> None:
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(link)

    codecache = ModuleType("torch._inductor.codecache")
    codecache.FxGraphCache = FxGraphCache  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, codecache.__name__, codecache)
    install(notes)
    for _ in range(2):
        FxGraphCache.clear()
    assert not link.exists()
    assert (outlives / "graph").exists()
