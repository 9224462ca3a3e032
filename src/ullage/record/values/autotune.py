"""Kernel choice by timing: takes the first kernel that works, and does not compile the others.

All kernels take equally long on the phantom, so the tuner would choose the first one. Compiling the
others would take most of the program's time and change nothing. The tuner's other allocations
(inputs, copies to restore) happen as often as on a GPU.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ullage.record.session.import_hooks import on_import

Note = Callable[[str, int, str], None]
_CHOSEN = ("kernel chosen by timing", 0, "first of all")


def install(note: Note) -> None:
    """Watches Triton's tuner and Inductor's choice among kernels, when and if they are imported."""
    on_import("triton.runtime.autotuner", functools.partial(_watch_triton, note))
    on_import("torch._inductor.select_algorithm", functools.partial(_watch_inductor, note))


class _DoesNothing:
    """Replaces a kernel that does not need to be compiled."""

    def run(self, *_args: Any, **_named: Any) -> None:
        """Launches nothing."""


def _watch_triton(note: Note, autotuner: ModuleType) -> None:
    kind = autotuner.Autotuner
    prune, bench = kind.prune_configs, kind._bench
    done: weakref.WeakSet[Any] = weakref.WeakSet()  # tuners that have found a working kernel

    @functools.wraps(prune)
    def prune_configs(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        done.discard(tuner)  # called once before each tuning
        return prune(tuner, *args, **kwargs)

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

    kind.prune_configs, kind._bench = prune_configs, bench_first


def _watch_inductor(note: Note, select_algorithm: ModuleType) -> None:
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
            times: dict[Any, float] = {}
            for number, choice in enumerate(choices, start=1):
                times |= benchmark([choice])
                if math.isfinite(times[choice]):
                    note(*_CHOSEN)
                    return times | dict.fromkeys(choices[number:], times[choice])
            return times

        return benchmark_first

    kind.make_benchmark_fn, kind.__call__ = staticmethod(make_first), select_uncompiled


__all__ = ["install"]
