"""A guard that adapts: reads the device before each step, and goes to the rung that the rules
choose. `ullage.act.guard.adapting.adapt` has the rules; this part has torch.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ullage.act.guard.adapting.adapt import Adapt, Change, Rules, Situation, square_sizes
from ullage.act.guard.adapting.batch_sizes import batch_sizes
from ullage.act.guard.adapting.forecast import Sizes
from ullage.act.guard.adapting.splitting import choose_split
from ullage.act.guard.batch_split import Divide, Part
from ullage.act.guard.failure import say
from ullage.act.guard.ladder import Ladder
from ullage.act.guard.reads.counters import Flags
from ullage.ground.errors import SpecError

_LOGGER = logging.getLogger("ullage.guard")


@dataclass(frozen=True, slots=True)
class _Begun:
    """A step that has begun: what was known before it, and how many optimizer states there were."""

    situation: Situation
    num_states: int


class Adaptation:
    """Goes to another rung before a step that needs one.

    Attributes:
        is_on: whether the last step had a forecast: a GPU, and a batch with sizes.
    """

    def __init__(
        self, settings: Adapt, ladder: Ladder, parameters: Sequence[Any], optimizers: Sequence[Any]
    ) -> None:
        self.is_on = False
        if _has_expandable_segments():
            settings = replace(settings, trims=False)  # the cache is never in the way
        self._settings = settings
        self._ladder = ladder
        self._flags = Flags(parameters)
        self._gradient_bytes = sum(
            each.numel() * each.element_size() for each in parameters if each.requires_grad
        )
        self._optimizers = optimizers
        self._rules = Rules(settings, len(ladder))
        self._device = _find_device(parameters)
        self._num_steps = 0
        self._begun: _Begun | None = None
        self._has_said_why_not = False
        _refuse_ranks()

    @property
    def log(self) -> list[Change]:
        """The last 10,000 changes, in order."""
        return [*self._rules.log]

    def begin(
        self, batch: Sequence[Any], keywords: Mapping[str, Any], divide: Divide | None = None
    ) -> None:
        """Before a step: goes to the rung of its batch.

        Args:
            batch: the step's arguments.
            keywords: the same, by name.
            divide: the batch in this many parts, where it can be split.
        """
        self._begun = None
        situation = self._read(batch, keywords)
        self.is_on = situation is not None
        if situation is None:
            return
        choice = self._rules.choose(situation)
        rung, changes = choice.rung, [*choice.changes]
        if divide is not None and self._ladder.splits(max(self._ladder.rung, rung + 1)):
            rung = self._choose_split(replace(situation, rung=rung), divide, changes)
        self._ladder.go_to(rung)
        cuda = _cuda()
        if choice.is_trimmed:
            cuda.empty_cache()
        for change in changes:
            _LOGGER.info("%s", change)
            if self._settings.prints:
                say(f"adapt: {change}")
        cuda.reset_peak_memory_stats(self._device)
        self._begun = _Begun(replace(situation, rung=rung), self._num_states())

    def _choose_split(self, situation: Situation, divide: Divide, changes: list[Change]) -> int:
        """The rung of a batch that may be split, with its change; that of the rules where not."""
        ladder, rung = self._ladder, situation.rung
        reason = "a batch is split after an error only (splits=False)"
        if self._settings.splits:
            counts = [1 << number for number in range(1, ladder.num_splits + 1)]
            parts = ((count, self._sizes_of_part(divide(count))) for count in counts)
            rung, reason = choose_split(
                self._rules, situation, parts, 0 if situation.program[-1] else self._gradient_bytes
            )
        if rung != ladder.rung and (ladder.splits(rung) or ladder.splits(ladder.rung)):
            kind = "split" if ladder.splits(rung) else "whole"
            self._rules.note(replace(situation, rung=ladder.rung), kind, rung, reason)
            changes.append(self._rules.log[-1])
        return rung

    def _sizes_of_part(self, parts: Sequence[Part]) -> Sizes:
        measure = self._settings.sizes
        if measure is not None:
            return max(square_sizes(measure(part)) for part, _ in parts)
        measured = [batch_sizes(part) for part, _ in parts]
        return max(each.sizes for each in measured if each is not None)

    def end(self) -> None:
        """After a step that was completed, on this rung or on another after an error."""
        self._num_steps += 1
        if self._begun is None:
            return
        situation = self._begun.situation
        if self._ladder.rung != situation.rung:
            self._rules.learn_failure(situation, self._ladder.rung)
            situation = replace(situation, rung=self._ladder.rung)
        stats = _cuda().memory_stats_as_nested_dict(self._device)
        peak_bytes = int(stats["allocated_bytes"]["all"]["peak"])
        is_first = self._num_states() != self._begun.num_states
        self._rules.learn(situation, peak_bytes, is_first=is_first)

    def close(self) -> None:
        """Says what it did."""
        say(f"adapt: {self._rules.num_changes} changes in {self._num_steps} steps, see guard.log")

    def _read(self, batch: Sequence[Any], keywords: Mapping[str, Any]) -> Situation | None:
        """The situation before a step; None where nothing can be forecast."""
        if self._device is None:
            self._say_why_not("the parameters are not on one GPU")
            return None
        measure = self._settings.sizes
        if measure is not None:
            program: tuple[int, ...] = ()
            sizes = square_sizes(measure(*batch, **keywords))
        else:
            measured = batch_sizes(*batch, *keywords.values())
            if measured is None:
                self._say_why_not("the step's arguments have no tensor; pass Adapt(sizes=...)")
                return None
            program, sizes = measured.program, measured.sizes
        has_gradients = self._flags.have_gradients()
        allocated_bytes, reserved_bytes, capacity_bytes = _read_memory(self._device)
        return Situation(
            step=self._num_steps,
            now_s=time.perf_counter(),
            program=(len(sizes), program, has_gradients),
            sizes=sizes,
            rung=min(self._ladder.rung, len(self._ladder) - 1 - self._ladder.num_splits),
            allocated_bytes=allocated_bytes,
            reserved_bytes=reserved_bytes,
            capacity_bytes=capacity_bytes,
        )

    def _num_states(self) -> int:
        return sum(len(each.state) for each in self._optimizers)

    def _say_why_not(self, reason: str) -> None:
        if not self._has_said_why_not:
            say(f"adapt: nothing is forecast: {reason}")
        self._has_said_why_not = True


def _cuda() -> Any:
    import torch

    return torch.cuda


def _find_device(parameters: Sequence[Any]) -> Any:
    devices = {each.device for each in parameters}
    device = devices.pop() if len(devices) == 1 else None
    return device if device is not None and device.type == "cuda" else None


def _read_memory(device: Any) -> tuple[int, int, int]:
    """Bytes of tensors, bytes of the allocator with its cache, and what it can have: its own and
    the free bytes of the device, within its limit (`set_per_process_memory_fraction`).
    """
    cuda = _cuda()
    stats = cuda.memory_stats_as_nested_dict(device)  # flattening it takes as long as the rest
    allocated_bytes = int(stats["allocated_bytes"]["all"]["current"])
    reserved_bytes = int(stats["reserved_bytes"]["all"]["current"])
    free_bytes, total_bytes = cuda.mem_get_info(device)
    capacity_bytes = reserved_bytes + int(free_bytes)
    read_fraction = getattr(cuda, "get_per_process_memory_fraction", None)  # torch >= 2.8
    if read_fraction is not None:
        capacity_bytes = min(capacity_bytes, int(read_fraction(device) * total_bytes))
    return allocated_bytes, reserved_bytes, capacity_bytes


def _has_expandable_segments() -> bool:
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    return any("expandable_segments:True" in os.environ.get(name, "") for name in names)


def _refuse_ranks() -> None:
    """Raises SpecError in a process group of several ranks: each would choose for itself."""
    import torch

    distributed = torch.distributed
    has_ranks = distributed.is_available() and distributed.is_initialized()
    if has_ranks and distributed.get_world_size() > 1:
        raise SpecError(
            "adapt is for one process: several ranks would choose different rungs; use adapt=False"
        )
