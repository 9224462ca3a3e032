"""Every ULLAGE_* variable: what it carries, who writes and who reads it."""

from __future__ import annotations

from typing import Final, NamedTuple

from ullage.ground.protocol.variables import (
    CAP,
    CAP_NOTES,
    CLOCK,
    COMPLETION,
    DESCRIBE,
    DEVICE,
    GUARD,
    INPUTS,
    LIBRARIES,
    NUM_DEVICES,
    NVML,
    OPTIONS,
    PARENT,
    PHANTOM,
    PLAN,
    PLAN_NOTES,
    PLATFORM,
    PREFORK,
    PROGRESS,
    RANK,
    RECORD,
    RECORDING,
    REPLAY,
    RUN_DIR,
    SNAPSHOT,
    VIRTUAL_TIME,
    WARM,
)


class Variable(NamedTuple):
    """A variable of the protocol.

    Attributes:
        name: in the environment.
        carries: its text, and what it means.
        writers: the files below ullage/ that set it; empty: only people and tests do.
        readers: the files below ullage/ that read it.
    """

    name: str
    carries: str
    writers: tuple[str, ...]
    readers: tuple[str, ...]


_LAUNCH = ("players/phantom/launch.py",)
_SITE = "players/phantom/site/sitecustomize.py"
_RECORDER = ("players/inside/entrances/simulated_gpu.py",)
_DEVICE_C = "players/phantom/csrc/machine/device.c"
_SCRIPT = "act/techniques/applying/script.py"

VARIABLES: Final = (
    Variable(
        PHANTOM,
        "1: the GPU of this process is the phantom",
        (*_LAUNCH, "act/techniques/replaying/process.py"),
        (
            _DEVICE_C,
            _SITE,
            "act/guard/state/tensors.py",
            "verbs/testing/settings.py",
            "players/inside/process/real_device.py",
        ),
    ),
    Variable(
        RECORD,
        "0: nothing is recorded, and nothing of ullage is imported; default 1",
        ("explain/whatif/replays.py", "verbs/testing/warm_pytest.py"),
        (_SITE,),
    ),
    Variable(
        RECORDING,
        "what `ullage record` asks of a process on a real GPU: a JSON object",
        ("search/runs/recorded.py", "players/inside/entrances/program.py"),
        (_SITE, "players/inside/entrances/settings.py"),
    ),
    Variable(
        PARENT,
        "the number of the process with which the started one ends; it takes the variable out",
        (*_LAUNCH, "players/phantom/bootstrap.py", "verbs/exec/function.py"),
        ("players/phantom/bootstrap.py",),
    ),
    Variable(
        RUN_DIR,
        "the directory for what the processes of a run leave: records, snapshots, notes",
        _LAUNCH,
        (
            "players/phantom/csrc/machine/memory.c",
            "players/phantom/csrc/machine/publish.c",
            "players/phantom/bootstrap.py",
            "players/phantom/fork.py",
            "players/phantom/launch.py",
            "players/phantom/orphan_processes.py",
            "ground/programs/allocator_replay.py",
            "players/inside/requests/calls.py",
            "players/inside/process/input_files.py",
            "players/inside/entrances/recording.py",
            *_RECORDER,
            _SCRIPT,
            "verbs/testing/child.py",
        ),
    ),
    Variable(
        INPUTS,
        "the directory in which each process notes the files that it reads; absent: none does",
        _LAUNCH,
        (_SITE, "players/inside/process/input_files.py"),
    ),
    Variable(
        DEVICE,
        "the device's properties: key=value;key=value",
        (*_LAUNCH, "ground/programs/allocator_replay.py"),
        (
            _DEVICE_C,
            "players/phantom/prefork.py",
            "players/inside/allocator/simulated_devices.py",
        ),
    ),
    Variable(
        NUM_DEVICES,
        "the number of devices, all alike",
        _LAUNCH,
        (_DEVICE_C, "players/phantom/bootstrap.py"),
    ),
    Variable(
        LIBRARIES,
        "the versions of NVIDIA's libraries that torch was built with: key=value;key=value",
        _LAUNCH,
        (_DEVICE_C,),
    ),
    Variable(
        COMPLETION,
        "at_once: work on the device is complete as soon as it is submitted; for tests",
        (),
        ("players/phantom/csrc/machine/completion.c",),
    ),
    Variable(
        PLATFORM,
        "the system whose driver's order of addresses the devices have: linux or windows",
        (*_LAUNCH, "ground/programs/allocator_replay.py"),
        (_DEVICE_C,),
    ),
    Variable(
        NVML,
        "the directory in which each process tells NVML programs what it uses of the devices",
        _LAUNCH,
        ("players/phantom/bootstrap.py", "players/phantom/csrc/machine/publish.c"),
    ),
    Variable(
        OPTIONS,
        "the options of `ullage run`, each by its name: a JSON object",
        _LAUNCH,
        _RECORDER,
    ),
    Variable(
        PROGRESS,
        "the file to which each step appends",
        (*_LAUNCH, "verbs/testing/warm_pytest.py"),
        _RECORDER,
    ),
    Variable(SNAPSHOT, "0: no memory snapshot is written; default 1", _LAUNCH, _RECORDER),
    Variable(CLOCK, "1: what streams are given is logged, for the clock", _LAUNCH, _RECORDER),
    Variable(
        VIRTUAL_TIME,
        "the GPU and the links by which the program's own clocks go",
        _LAUNCH,
        ("players/phantom/bootstrap.py",),
    ),
    Variable(
        RANK,
        "the rank that is played without its peers, and the directory through which played ranks "
        "exchange data: RANK/WORLD_SIZE/DIRECTORY",
        _LAUNCH,
        _RECORDER,
    ),
    Variable(
        CAP,
        "the most bytes of a GPU that a process may take, its context included",
        ("verbs/exec/function.py",),
        ("act/techniques/applying/cap.py", "players/phantom/site/sitecustomize.py"),
    ),
    Variable(
        CAP_NOTES,
        "the directory in which each process notes what became of its cap",
        ("verbs/exec/function.py",),
        ("act/techniques/applying/cap.py",),
    ),
    Variable(
        PLAN,
        "the file of the plan that is applied to the model; without a phantom too",
        _LAUNCH,
        (_SITE, _SCRIPT),
    ),
    Variable(
        PLAN_NOTES,
        "the directory for the outcome of the plan and the description of the model",
        _LAUNCH,
        ("players/phantom/bootstrap.py", _SCRIPT, _SITE),
    ),
    Variable(DESCRIBE, "1: the model is described with all its modules", _LAUNCH, (_SCRIPT,)),
    Variable(
        REPLAY, "1: the plan is replayed on the CPU in place of the training", _LAUNCH, (_SCRIPT,)
    ),
    Variable(
        GUARD,
        "the directory in which each process under `exec --guard` notes what ended it",
        ("verbs/exec/function.py",),
        (
            _SITE,
            "act/guard/end_note.py",
            "players/phantom/launch.py",
            "players/phantom/orphan_processes.py",
        ),
    ),
    Variable(
        WARM,
        "the descriptor of the socket on which a warm process waits after the import of torch",
        ("players/phantom/warm.py",),
        (_SITE, "players/phantom/fork.py"),
    ),
    Variable(
        PREFORK,
        "the descriptor of the socket on which a process waits at the first call of its model",
        ("players/phantom/warm.py",),
        (_SITE, "players/phantom/prefork.py"),
    ),
)
