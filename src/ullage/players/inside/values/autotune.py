"""Kernel choice by timing: takes the first kernel that works, and does not compile the others.

All kernels take equally long on the phantom, so the tuner would choose the first one. Compiling the
others would take most of the program's time and change nothing. The tuner's other allocations
(inputs, copies to restore) happen as often as on a GPU.
"""

from __future__ import annotations

import functools
import math
import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ullage.players.inside.import_hooks import on_import
from ullage.players.inside.part import Part
from ullage.players.inside.patches import Patches, around

Note = Callable[[str, int, str], None]
_CHOSEN = ("kernel chosen by timing", 0, "first of all")
# Where else Inductor times kernels: the module, the class or none, the functions.
_TIMERS: tuple[tuple[str, str | None, tuple[str, ...]], ...] = (
    (
        "torch._inductor.runtime.triton_heuristics",
        "CachingAutotuner",
        ("autotune_to_one_config", "coordinate_descent_tuning"),
    ),
    ("torch._inductor.fx_passes.pad_mm", None, ("get_do_bench",)),
)


class Timed(Part):
    """How often Inductor timed kernels because its cache knew no choice: in all, and while it
    compiled a graph.

    note_choice: called where a choice is made.
    """

    def __init__(self, note_choice: Note) -> None:
        self._note_choice = note_choice
        self.count = self.num_compiling = 0

    def note(self, *, is_compiling: bool) -> None:
        """Counts one."""
        self.count += 1
        self.num_compiling += is_compiling

    def install(self, _patches: Patches) -> None:
        """Watches Triton's tuner and Inductor's choice among kernels, when they are imported."""
        part, note = functools.partial, self._note_choice
        on_import("triton.runtime.autotuner", part(_watch_triton, note))
        on_import("torch._inductor.select_algorithm", part(_watch_inductor, note, self))
        on_import("torch._inductor.codecache", part(_watch_graphs, self))
        on_import("torch._inductor.runtime.autotune_cache", _forget_choices)
        on_import(
            "torch._functorch._aot_autograd.autograd_cache",
            lambda module: _clear_own(getattr(module, "AOTAutogradCache", None)),
        )
        for module, kind, names in _TIMERS:
            on_import(module, part(_count_calls, self, kind, names))

    def fields(self) -> dict[str, Any]:
        """Its part of the record."""
        return {"num_timed": self.count}


class _DoesNothing:
    def run(self, *_args: Any, **_named: Any) -> None:
        """Launches nothing."""


def _watch_triton(note: Note, autotuner: ModuleType) -> None:
    kind = autotuner.Autotuner
    bench = kind._bench
    done: weakref.WeakSet[Any] = weakref.WeakSet()  # tuners that have found a working kernel

    @functools.wraps(bench)
    def bench_first(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        if tuner not in done:
            times = bench(tuner, *args, **kwargs)
            if math.isfinite(times[0] if isinstance(times, list | tuple) else times):
                done.add(tuner)
                note(*_CHOSEN)
            return times
        kernel, tuner.fn = tuner.fn, _DoesNothing()
        try:
            return bench(tuner, *args, **kwargs)
        finally:
            tuner.fn = kernel

    kind._bench = bench_first
    # Called once before each tuning.
    kind.prune_configs = around(kind.prune_configs, lambda tuner, *_, **__: done.discard(tuner))


def _count_calls(timed: Timed, kind: str | None, names: Sequence[str], module: ModuleType) -> None:
    owner = module if kind is None else getattr(module, kind, None)
    for name in names:
        function = getattr(owner, name, None)
        if function is not None:
            count = around(function, lambda *_, **__: timed.note(is_compiling=kind is None))
            setattr(owner, name, count)


def _watch_graphs(timed: Timed, codecache: ModuleType) -> None:
    """Keeps out of the cache of graphs, which outlives the run, what holds a choice by timing, or
    tensors that are loaded at another time than they were made.
    """
    kind = getattr(codecache, "FxGraphCache", None)
    _clear_own(kind)
    save = getattr(kind, "_save_graph", None)
    if save is None:
        return
    num_saved_at = 0

    @functools.wraps(save)
    def save_without_choices(key: Any, graph: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal num_saved_at
        is_alike = timed.num_compiling == num_saved_at and not getattr(graph, "constants", None)
        num_saved_at = timed.num_compiling
        if is_alike:
            save(key, graph, *args, **kwargs)

    kind._save_graph = staticmethod(save_without_choices)  # type: ignore[union-attr]


def _forget_choices(autotune_cache: ModuleType) -> None:
    """A graph of an earlier run names the directory of that run: the choices among its kernels are
    read from, and written to, that of this run.
    """
    kind = autotune_cache.AutotuneCache
    for name in {"_read", "save"} & vars(kind).keys():
        setattr(kind, name, _using_own_directory(vars(kind)[name]))


def _using_own_directory(use: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(use)
    def use_own_directory(cache: Any, *args: Any, **kwargs: Any) -> Any:
        if cache.local_cache is not None:
            backend, key = cache.local_cache
            own = Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", "/"), *Path(key).parts[-2:])
            cache.local_cache = backend, str(own)
        return use(cache, *args, **kwargs)

    return use_own_directory


def _clear_own(kind: Any) -> None:
    """A program that clears a cache of graphs clears that of this run: its directory is a link to
    the one that outlives the run (players/phantom/caches.py), which torch's way to remove it
    refuses.
    """
    clear, directory = getattr(kind, "clear", None), getattr(kind, "_get_tmp_dir", None)
    if clear is None or directory is None:
        return

    @functools.wraps(clear)
    def unlink_and_clear(*args: Any) -> None:
        path = Path(directory())
        if path.is_symlink():
            path.unlink()
        clear(*args)

    kind.clear = staticmethod(unlink_and_clear)


def _watch_inductor(note: Note, timed: Timed, select_algorithm: ModuleType) -> None:
    kind = select_algorithm.AlgorithmSelectorCache
    make, select = kind.make_benchmark_fn, kind.__call__

    @functools.wraps(select)
    def select_uncompiled(cache: Any, *args: Any, **kwargs: Any) -> Any:
        return select(cache, *args, **kwargs | {"precompilation_timeout_seconds": 0})

    @functools.wraps(make)
    def make_first(*args: Any, **kwargs: Any) -> Any:
        benchmark = make(*args, **kwargs)

        @functools.wraps(benchmark)
        def benchmark_first(choices: Any) -> Any:
            timed.note(is_compiling=True)
            times: dict[Any, float] = {}
            for number, choice in enumerate(choices, start=1):
                times |= benchmark([choice])
                if math.isfinite(times[choice]):
                    note(*_CHOSEN)
                    return times | dict.fromkeys(choices[number:], times[choice])
            return times

        return benchmark_first

    kind.make_benchmark_fn, kind.__call__ = staticmethod(make_first), select_uncompiled
