"""Reads one GPU again and again: its questions when they are due, its processes once a second.

A question that the driver refuses is asked again a minute later; until then its fields are None,
and `reasons` says why. A GPU that is lost keeps its identity; it is looked for every ten seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final

from ullage.operate.watch.nvml.identity import Identities
from ullage.operate.watch.nvml.library import Trouble, Unknown, reason_of, trouble_of
from ullage.operate.watch.nvml.processes import NO_INSTANCE, Place, ProcessReader
from ullage.operate.watch.nvml.questions import (
    EACH_MINUTE,
    EACH_SECOND,
    EACH_TEN_SECONDS,
    Answer,
    Question,
    questions_of,
)
from ullage.operate.watch.sample import DeviceSample, MigInstance, ProcessSample

_WHOLE: Final[Place] = (NO_INSTANCE, NO_INSTANCE)
_OUTSIDE: Final = "some are outside this container, or hidden from this user"


class LostDeviceError(Exception):
    """The GPU does not answer any more."""


class NvmlClosedError(Exception):
    """NVML must be opened again, as after the driver was reloaded."""


class _Handle:
    """The state of one GPU or MIG device; `num_changes` counts how often that has changed."""

    def __init__(
        self, nvml: ModuleType, handle: object, clock: Callable[[], float], offset_s: float
    ) -> None:
        self._errors = (nvml.NVMLError, Unknown, UnicodeError)
        self._questions = questions_of(nvml, handle, clock)
        self._due_s = [0.0] * len(self._questions)
        self._next_s = 0.0
        self._offset_s = offset_s
        self._answers: list[Answer] = [()] * len(self._questions)
        self.num_changes = 0
        self.values: dict[str, Any] = {}
        self.reasons: dict[str, str] = {}

    def refresh(self, now_s: float) -> None:
        """Asks what is due; those that are asked each time come first."""
        for index, question in enumerate(self._questions):
            if question.period_s and now_s < self._next_s:
                return
            if now_s >= self._due_s[index]:
                self._ask(index, question, now_s)
        slow = (due_s for due_s in self._due_s if due_s)
        self._next_s = min(slow, default=now_s)

    def _ask(self, index: int, question: Question, now_s: float) -> None:
        """Asks one question, and says when it is due again."""
        # The GPUs take turns, so that one reading does not last much longer than the others.
        pause_s = question.period_s
        if pause_s and not self._due_s[index]:
            pause_s += self._offset_s
        try:
            answer = question.ask()
        except self._errors as error:
            _raise_if_gone(error)
            is_lasting = trouble_of(error) is Trouble.LASTING
            self._due_s[index] = now_s + (EACH_MINUTE if is_lasting else pause_s)
            self._answers[index] = ()
            self.num_changes += 1
            for field in question.fields:
                self.values[field] = None
                self.reasons[field] = reason_of(error)
            return
        if pause_s:
            self._due_s[index] = now_s + pause_s
        if answer == self._answers[index]:
            return
        self._answers[index] = answer
        self.num_changes += 1
        self.values.update(zip(question.fields, answer, strict=True))
        if None in answer or not self.reasons.keys().isdisjoint(question.fields):
            for field, value in zip(question.fields, answer, strict=True):
                _set(self.reasons, field, "the driver is too old" if value is None else None)


def _raise_if_gone(error: Exception) -> None:
    trouble = trouble_of(error)
    if trouble is Trouble.LOST:
        raise LostDeviceError(reason_of(error)) from None
    if trouble is Trouble.CLOSED:
        raise NvmlClosedError from None


class DeviceReader:
    """Reads one GPU with its MIG devices.

    `reasons` are those of the last reading, by the field that they explain. Samples are immutable:
    as long as nothing has changed, a reading is the same objects, which costs nothing to make, and
    whoever keeps what he made of the last one sees at a glance that it still holds.
    """

    def __init__(
        self,
        nvml: ModuleType,
        index: int,
        identities: Identities,
        clock: Callable[[], float],
    ) -> None:
        self._nvml, self._index = nvml, index
        self._identities, self._clock = identities, clock
        self._identity: dict[str, str | None] = {"uuid": None, "name": None}
        self._whole: _Handle | None = None
        self._processes: ProcessReader | None = None
        self._users: dict[Place, tuple[ProcessSample, ...]] | None = None
        self._parts: list[tuple[MigInstance, dict[str, str | None], _Handle]] = []
        self._num_user_changes = 0
        self._users_due_s = self._parts_due_s = self._retry_s = 0.0
        self._offset_s = (index % 10) / 10
        self.reasons: dict[str, str] = {}
        self._state: tuple[object, ...] = ()
        self._devices: list[DeviceSample] = []

    def read(self) -> list[DeviceSample]:
        """The GPU, then its MIG devices.

        Raises:
            NvmlClosedError: NVML must be opened again.
        """
        now_s = self._clock()
        try:
            if self._whole is None:
                if now_s < self._retry_s:
                    return [self._lost()]
                self._open(now_s)
            return self._read(now_s)
        except LostDeviceError as error:
            self._whole, self._users, self._parts = None, None, []
            self._retry_s = now_s + EACH_TEN_SECONDS
            self.reasons, self._state = {"devices": str(error)}, ()
            return [self._lost()]

    def _lost(self) -> DeviceSample:
        identity = self._identity
        return DeviceSample(self._index, identity["uuid"], identity["name"], is_lost=True)

    def _open(self, now_s: float) -> None:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(self._index)
        except nvml.NVMLError as error:
            _raise_if_gone(error)
            raise LostDeviceError(reason_of(error)) from None
        self._whole = _Handle(nvml, handle, self._clock, self._offset_s)
        self._handle = handle
        self._processes = ProcessReader(nvml, handle, self._identities)
        self._identity = self._identify(handle)
        self._users_due_s = self._parts_due_s = now_s
        self.reasons = {}

    def _identify(self, handle: object) -> dict[str, str | None]:
        identity: dict[str, str | None] = {}
        for field, name in (("uuid", "nvmlDeviceGetUUID"), ("name", "nvmlDeviceGetName")):
            try:
                identity[field] = getattr(self._nvml, name)(handle)
            except (self._nvml.NVMLError, UnicodeError) as error:
                _raise_if_gone(error)
                identity[field] = None
        return identity

    def _read(self, now_s: float) -> list[DeviceSample]:
        whole = self._whole
        if whole is None:
            raise LostDeviceError("the GPU is not there")
        whole.refresh(now_s)
        if now_s >= self._parts_due_s:
            self._parts_due_s = now_s + EACH_TEN_SECONDS + self._offset_s
            self._parts = list(self._find_parts())
        if now_s >= self._users_due_s:
            is_first = self._users is None
            self._users_due_s = now_s + EACH_SECOND + (self._offset_s if is_first else 0.0)
            self._read_users()
        self.reasons = whole.reasons
        for _, _, part in self._parts:
            part.refresh(now_s)
        state = (
            whole.num_changes,
            self._num_user_changes,
            *((mig, part.num_changes) for mig, _, part in self._parts),
        )
        if state != self._state:
            self._state, self._devices = state, list(self._sample(whole))
        return self._devices

    def _sample(self, whole: _Handle) -> Iterator[DeviceSample]:
        """The GPU and its MIG devices, as they are known now."""
        users = self._users
        for mig, identity, handle in ((None, self._identity, whole), *self._parts):
            place = _WHOLE if mig is None else (mig.gpu_instance, mig.compute_instance)
            yield DeviceSample(
                self._index,
                identity["uuid"],
                identity["name"],
                mig,
                processes=None if users is None else users.get(place, ()),
                **handle.values,
            )

    def _read_users(self) -> None:
        """Reads the processes, and why something about them is not known."""
        whole, reader = self._whole, self._processes
        if whole is None or reader is None:
            return
        reasons = whole.reasons
        try:
            users = reader.read()
        except self._nvml.NVMLError as error:
            _raise_if_gone(error)
            self._users = None
            self._num_user_changes += 1
            reasons["processes"] = reason_of(error)
            reasons.pop("sm_frac", None)
            return
        why = reader.reason if users else None
        if why != reasons.get("sm_frac"):
            _set(reasons, "sm_frac", why)
            self._num_user_changes += 1
        if users == self._users:
            return
        self._users = users
        self._num_user_changes += 1
        everyone = [user for place in users.values() for user in place]
        is_partial = not all(user.is_own for user in everyone)
        _set(reasons, "processes", _OUTSIDE if is_partial else None)
        has_sizes = all(user.used_bytes is not None for user in everyone)
        _set(reasons, "used_bytes of processes", None if has_sizes else "the driver does not say")

    def _find_parts(self) -> Iterator[tuple[MigInstance, dict[str, str | None], _Handle]]:
        """The MIG devices; those that are known stay, so that rates go on."""
        nvml, known = self._nvml, {part[0]: part for part in self._parts}
        try:
            if nvml.nvmlDeviceGetMigMode(self._handle)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
                return
            count = nvml.nvmlDeviceGetMaxMigDeviceCount(self._handle)
        except nvml.NVMLError as error:
            _raise_if_gone(error)
            return
        for number in range(count):
            try:
                handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(self._handle, number)
                mig = MigInstance(
                    self._identity["uuid"],
                    nvml.nvmlDeviceGetGpuInstanceId(handle),
                    nvml.nvmlDeviceGetComputeInstanceId(handle),
                )
            except nvml.NVMLError as error:
                if trouble_of(error) is Trouble.CLOSED:
                    raise NvmlClosedError from None
                continue  # places between them may be empty
            part = _Handle(nvml, handle, self._clock, self._offset_s)
            yield known.get(mig) or (mig, self._identify(handle), part)


def _set(reasons: dict[str, str], field: str, reason: str | None) -> None:
    if reason is None:
        reasons.pop(field, None)
    else:
        reasons[field] = reason
