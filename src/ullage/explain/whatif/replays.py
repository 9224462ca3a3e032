"""Makes the requests of traces again, under other settings or on another device.

    (answer,) = replay_all([ReplayOrder(requests, "max_split_size_mb:64", device, platform)], where)
    answer.played.peak_reserved_bytes

The rules of PyTorch's allocator decide (log/rules.py), within milliseconds. What these do not
know, a setting or a version of torch, goes to that torch's own allocator: a child process imports
it, and forks for each order (ground/programs/allocator_replay.py).
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ullage.explain.whatif.settings import (
    UnknownSettingError,
    is_no_limit,
    is_released_in_pool,
    parse_settings,
)
from ullage.ground.errors import EnvironmentProblem
from ullage.ground.native.libraries import LIBRARY_DIR
from ullage.ground.programs import program_path
from ullage.ground.programs.allocator_replay import RETRY
from ullage.ground.protocol.run import Platform
from ullage.ground.protocol.variables import RECORD
from ullage.log.reader import parse_record
from ullage.log.requests import Requests
from ullage.log.rules import ORDERS, AllocatorOutcome, AllocatorSettings
from ullage.log.snapshot import Snapshot
from ullage.log.ties import BY_ADDRESS, BY_AGE
from ullage.players.phantom.device import PhantomDevice
from ullage.players.phantom.launch import LaunchOptions, make_environment, run_directory, start
from ullage.players.phantom.program import UserProgram, resolve_program
from ullage.players.phantom.torch_build import TorchBuild, check_torch, find_torch
from ullage.verbs.run.options import RunOptions

REPLAYER = program_path("allocator_replay")
_TAIL_BYTES = 2000


@dataclass(frozen=True, slots=True)
class Where:
    """The interpreter and the torch whose rules hold, and the device that it sees."""

    python: str
    build: TorchBuild
    device: PhantomDevice


@dataclass(frozen=True, slots=True)
class ReplayOrder:
    """One replay to make.

    Attributes:
        settings: as in PYTORCH_ALLOC_CONF.
        platform: the system in whose order the driver hands out addresses.
        fraction: the argument of torch.cuda.set_per_process_memory_fraction; None: not called.
        before: the name of the requests that lead to the state before the first event.
        ignored: kinds of operations that are left out; a replayed allocator makes room by itself.
    """

    requests: Requests
    settings: str
    device: PhantomDevice
    platform: Platform
    fraction: float | None = None
    before: str = "packed"
    ignored: tuple[int, ...] = (RETRY,)


class Decider(enum.Enum):
    """Which form of the allocator's rules decided."""

    RULES = "rules"
    TORCH = "torch"


@dataclass(frozen=True, slots=True)
class ReplayAnswer:
    """The outcome of an order.

    Attributes:
        played: None where torch refused the setting.
        refusal: torch's message in that case.
        why_torch: what the rules do not know, where torch's own allocator decided.
    """

    played: AllocatorOutcome | None
    refusal: str = ""
    why_torch: str = ""

    @property
    def decider(self) -> Decider:
        """Which allocator it was."""
        return Decider.TORCH if self.why_torch else Decider.RULES


def find_where(python: str | None, device: PhantomDevice, snapshot: Snapshot) -> Where:
    """The torch of an interpreter; None: of the one that runs ullage, or, where that has none, the
    torch that ullage's record in the snapshot names: its rules need no interpreter.

    Raises:
        SpecError: there is no such interpreter.
        EnvironmentProblem: it has no torch for CUDA.
    """
    interpreter = resolve_program((str(REPLAYER),), python).python
    try:
        build = find_torch(interpreter)
    except EnvironmentProblem:
        if python is not None or snapshot.record is None:
            raise
        torch = parse_record(snapshot.record).torch
        build = TorchBuild(torch, "", Path(), {}, frozenset(), frozenset())
    return Where(interpreter, build, device)


def replay_all(orders: Sequence[ReplayOrder], where: Where) -> list[ReplayAnswer]:
    """The answer of each order.

    Raises:
        EnvironmentProblem: torch's own allocator was needed, and could not be asked.
    """
    answers = [_replay_by_rules(order, where.build) for order in orders]
    left = [number for number, answer in enumerate(answers) if answer.why_torch]
    if left:
        results = _replay_in_torch([orders[number] for number in left], where)
        for number, answer in zip(left, results, strict=True):
            why = answers[number].why_torch
            if "error" in answer:
                answers[number] = ReplayAnswer(None, answer["error"], why)
            else:
                segments = tuple(answer["segments"])
                played = AllocatorOutcome(**{**answer, "segments": segments})
                answers[number] = ReplayAnswer(played, why_torch=why)
    return answers


def _replay_by_rules(order: ReplayOrder, build: TorchBuild) -> ReplayAnswer:
    try:
        settings = find_rules(order, build)
    except UnknownSettingError as error:
        return ReplayAnswer(None, why_torch=str(error))
    played = order.requests.play(settings, before=order.before, ignored=order.ignored)
    if played is None:
        return ReplayAnswer(None, why_torch="the requests have too many streams")
    return ReplayAnswer(played)


def find_rules(order: ReplayOrder, build: TorchBuild) -> AllocatorSettings:
    """The settings of torch's allocator on the device of an order.

    Raises:
        UnknownSettingError: the rules do not know a setting, or this torch.
    """
    settings, gpu = parse_settings(order.settings, build.release), order.device.usable
    settings.order = ORDERS[order.platform]
    settings.tie = BY_ADDRESS if build.chooses_by_address else BY_AGE
    # Source: ExpandableSegment in c10/cuda/CUDACachingAllocator.cpp.
    settings.range_bytes = order.device.gpu.total_bytes * 9 // 8
    if not order.device.is_unlimited:
        settings.device_bytes = gpu.total_bytes - gpu.context_high_bytes
    if order.fraction is not None and not is_no_limit(order.fraction, build.release):
        settings.allowed_bytes = int(order.fraction * order.device.gpu.total_bytes)
    if order.requests.has_pools:
        settings.is_released_in_pool = is_released_in_pool(build.release)
    return settings


def _replay_in_torch(orders: Sequence[ReplayOrder], where: Where) -> list[Mapping[str, Any]]:
    """The answers of torch's own allocator, as ground/programs/allocator_replay.py gives them."""
    build = check_torch(find_torch(where.python), LIBRARY_DIR)
    with run_directory() as directory:
        paths: dict[int, Path] = {}
        for order in orders:
            if id(order.requests) not in paths:
                path = paths[id(order.requests)] = directory / f"requests-{len(paths)}"
                order.requests.write(path)
        listed, results, output = (directory / name for name in ("orders", "results", "output"))
        texts = [
            {
                "number": number,
                "requests": str(paths[id(order.requests)]),
                "settings": order.settings,
                "device": order.device.environment_text(),
                "platform": order.platform.value,
                "fraction": order.fraction,
                "before": order.before,
                "ignored": order.ignored,
            }
            for number, order in enumerate(orders)
        ]
        listed.write_text(json.dumps(texts), encoding="utf-8")
        options = LaunchOptions(RunOptions((), alloc_conf=""))
        environment = make_environment(directory, where.device, build, options)
        # The child is not recorded, and the caller's environment hides neither device nor cache.
        environment |= {RECORD: "0", "CUDA_VISIBLE_DEVICES": "0"}
        environment.pop("PYTORCH_NO_CUDA_MEMORY_CACHING", None)
        arguments = (str(REPLAYER), str(listed), str(results))
        program = UserProgram(where.python, arguments, arguments)
        with start(program, environment, output=output) as child:
            ended = child.wait()
        if ended.was_interrupted:
            raise KeyboardInterrupt
        lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
        answers = {answer.pop("number"): answer for answer in map(json.loads, lines)}
        if ended.exit_code or not answers:
            tail = output.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip()
            raise EnvironmentProblem(
                f"the replay ended with {ended.exit_code} in {where.python!r}: "
                f"{tail or 'without a word'}"
            )
    return [
        answers.get(number, {"error": "the replay was killed"}) for number in range(len(orders))
    ]
