"""Runs inside every Python process that `ullage run` starts: waits for torch, then watches.

Loaded by site/sitecustomize.py before the program's first line. It must not import torch itself:
programs set environment variables that torch reads at its import.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import io
import os
import signal
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ullage.ground.native.libraries import LIBRARY_DIR
from ullage.ground.protocol.variables import (
    NUM_DEVICES,
    NVML,
    PARENT,
    PLAN_NOTES,
    RUN_DIR,
    VIRTUAL_TIME,
)
from ullage.players.inside.import_hooks import Load, around_import
from ullage.players.inside.owners.module_trees import of_kinds
from ullage.players.inside.process.frameworks import note_framework
from ullage.players.inside.program_end import watch_end

if TYPE_CHECKING:
    from ullage.act.techniques.applying.script import PlanRequest
    from ullage.players.inside.recorder import Recorder
    from ullage.players.phantom.virtual_time import VirtualTime

_PR_SET_PDEATHSIG = 1
_LAUNCHERS = ("torchrun", "torch.distributed.run")
_OLDEST = 2  # the collector's generation of what has been there for long
_COMPILE_WORKER = f"torch{os.sep}_inductor{os.sep}compile_worker{os.sep}"


@contextlib.contextmanager
def stubs_for_libraries() -> Iterator[None]:
    """While torch is imported: NVIDIA libraries that it opens by their path are the phantom's.

    Where they are needed by name, the preloaded phantom is found without this.
    """
    original: Any = ctypes.CDLL
    stubs = LIBRARY_DIR

    def load(name: str | None, *arguments: Any, **keywords: Any) -> ctypes.CDLL:
        stub = stubs / os.path.basename(name) if name else None  # noqa: PTH119
        c_d_l_l: ctypes.CDLL = original(
            str(stub) if stub and stub.exists() else name, *arguments, **keywords
        )
        return c_d_l_l

    ctypes.CDLL = load  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        ctypes.CDLL = original  # type: ignore[misc]


class QuietCollector:
    """Python's collector while torch is imported, and at Python's end: it looks for cycles among
    half a million objects that stay, which takes a fifth of the processor time of an import.
    """

    def __init__(self) -> None:
        self._is_quiet = self._has_set_aside = False
        self._files = [weakref.ref(file) for file in _files()]  # they may be set aside
        atexit.register(self._end)  # it runs after what is registered from here on

    def __enter__(self) -> QuietCollector:
        # Where somebody has set objects aside, as a process that others are forked from does, they
        # are not to be brought back.
        self._is_quiet = gc.isenabled() and not gc.get_freeze_count()
        if self._is_quiet:
            gc.disable()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_quiet:
            return
        # What is there by now is set aside until the next search among all objects, which visits
        # it. That comes when it would have come after a search at the import's end. Until then
        # `gc.get_objects()` lists the program's own objects, among which modules are looked for
        # several times. Python 3.14 collects in parts: there nothing is set aside.
        if sys.version_info < (3, 14):
            self._has_set_aside = True
            gc.callbacks.append(self._bring_back)
            gc.freeze()
        else:
            gc.collect()
        gc.enable()

    def _bring_back(self, phase: str, info: Mapping[str, int]) -> None:
        if self._has_set_aside and phase == "start" and info["generation"] == _OLDEST:
            self._has_set_aside = False
            gc.unfreeze()

    def _end(self) -> None:
        # Files that only a cycle would close are flushed; then no cycle is looked for.
        for file in filter(None, (*_files(), *(reference() for reference in self._files))):
            with contextlib.suppress(OSError, ValueError):  # ValueError: it is closed
                file.flush()
        self._has_set_aside = False
        gc.freeze()


def end_with_parent() -> None:
    """Has the kernel end this process when the one named by the variable PARENT ends, even if
    killed.

    Only the process that ullage started gets the variable, and takes it out; a launcher passes it
    on to its ranks. (The kernel goes by the thread that started a process: a program may start some
    in threads that end.)
    """
    parent = os.environ.pop(PARENT, "")
    if not parent.isdecimal():
        return
    end_with(int(parent))
    if any(Path(word).name in _LAUNCHERS for word in sys.orig_argv):
        os.environ[PARENT] = str(os.getpid())


def end_with(parent: int) -> None:
    """Has the kernel end this process when its parent ends, even if killed."""
    if os.getppid() == parent:  # else a wrapper stands between
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        os.kill(parent, 0)
    except ProcessLookupError:  # it had ended before the kernel was told
        os.kill(os.getpid(), signal.SIGKILL)
    except PermissionError:
        return


def start(
    wait: Callable[[Any], PlanRequest] | None = None,
    arrive: Callable[[list[str]], None] = lambda _changed: None,
) -> None:
    """Arranges for torch to be watched in this process, when and if it is imported.

    wait: called with what watches it at the first call of what the program trains; what it gives
        back is done from there on. None: it is known from the start.
    arrive: called before torch is, with the variables that the program has changed by then.
    """
    if any(_COMPILE_WORKER in word for word in sys.orig_argv):
        return  # it asks what the device is, and takes nothing of it
    environment = dict(os.environ)
    if RUN_DIR in environment:
        note_framework(Path(environment[RUN_DIR]))
    virtual_time = _replace_clocks(environment)

    def load_and_watch(torch: ModuleType, load: Load) -> None:
        arrive(sorted({name for name, _text in os.environ.items() ^ environment.items()}))
        with stubs_for_libraries(), QuietCollector():
            load(torch)
        recorder = watch(torch, environment)
        if virtual_time is not None and recorder is not None:
            virtual_time.begin()
        wait_for_order = (
            None if wait is None or recorder is None else functools.partial(wait, recorder)
        )
        install_plan(torch, environment, wait_for_order, recorder)

    around_import("torch", load_and_watch)


def _files() -> list[Any]:
    """The files that Python has open and that keep what is written to them for a while."""
    return of_kinds(gc.get_objects(), {io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom})


def _replace_clocks(environment: Mapping[str, str]) -> VirtualTime | None:
    """Has the program's clocks follow the device; None: they stay real."""
    text = environment.get(VIRTUAL_TIME, "")
    if not text:
        return None
    from ullage.players.phantom.virtual_time import VirtualTime

    num_told = int(environment.get(NUM_DEVICES, "1")) if environment.get(NVML) else 0
    gpu, _, interconnect = text.partition("|")
    clock = VirtualTime(gpu, interconnect, num_told)
    clock.install()
    return clock


def install_plan(
    torch: ModuleType,
    environment: Mapping[str, str] = os.environ,
    wait: Callable[[], PlanRequest] | None = None,
    recorder: Recorder | None = None,
) -> None:
    """Has the plan of the run applied, where it has one."""
    if PLAN_NOTES in environment or wait is not None:
        from ullage.act.techniques.applying.script import install_from

        install_from(environment, torch, wait, None if recorder is None else recorder.step_aside)


def watch(torch: ModuleType, environment: Mapping[str, str] = os.environ) -> Recorder | None:
    """Switches the recording on; the record is written however the process ends. None: there is
    nothing to watch.

    Args:
        torch: the module, imported.
        environment: what the process was started with; the program may have emptied its own.
    """
    from ullage.ground.protocol.run import RunVariables
    from ullage.players.inside import library
    from ullage.players.inside.entrances.simulated_gpu import record_run

    if not library.is_present or not hasattr(torch._C, "_cuda_record_memory_history"):
        return None
    recorder = record_run(torch, RunVariables.from_environment(environment))
    recorder.attach()
    atexit.register(recorder.finish)
    watch_end(recorder)
    return recorder
