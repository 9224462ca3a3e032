"""Optimizer states in pinned host memory; the step has the states of a few parameters on the GPU.

While one part of the parameters is stepped, the states of the next part are copied to the GPU, and
those of the previous part are copied back, each on its own stream. All device memory belongs to the
program's stream, which waits before memory is reused or freed. So the memory in use does not depend
on when copies end.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from ullage.act.techniques.means.offloading.pinned import Pinned
from ullage.act.techniques.means.optimizer_parts import parameters_of
from ullage.act.techniques.means.stored_states import States, StoredStates, is_values
from ullage.act.techniques.technique import Action, Place, Semantics, Setting, Technique
from ullage.ground.errors import PlanError

if TYPE_CHECKING:
    from ullage.act.techniques.applying.target import Target

# Parts that are copied to the host while the next part is stepped.
_NUM_LEAVING = 1
_ALL = 100


def _apply(target: Target, action: Action) -> None:
    part_bytes = int(OPTIMIZER_OFFLOAD.value_of(action, "part_mib")) * 2**20
    percent = int(OPTIMIZER_OFFLOAD.value_of(action, "percent"))
    if percent > _ALL:
        raise PlanError(f"'optimizer_offload': percent is {percent}; expected {_ALL} at most")
    for optimizer in target.optimizers:
        states = StoredStates(optimizer, _HostStore(_staying(optimizer, percent)), part_bytes)
        states.apply("optimizer_offload", target.changes)


def _staying(optimizer: Any, percent: int) -> set[int]:
    """The ids of the parameters whose states stay on the device. The largest states go to the host
    first, up to the given percentage of all bytes.
    """
    sizes = {
        id(parameter): parameter.numel() * parameter.element_size()
        for parameter in parameters_of(optimizer)
    }
    left = sum(sizes.values()) * percent // _ALL
    staying = set()
    for number in sorted(sizes, key=sizes.__getitem__, reverse=True):
        if sizes[number] <= left:
            left -= sizes[number]
        else:
            staying.add(number)
    return staying


class _HostStore:
    """States in host memory, except for the parameters in `staying`. On the CPU they are also
    copied, without streams.
    """

    num_ahead = 1

    def __init__(self, staying: set[int]) -> None:
        import torch

        self._staying = staying
        self._torch = torch
        self._pinned: dict[str, Pinned] = {}
        self._streams: dict[tuple[Any, bool], Any] = {}
        self._arrivals: deque[Any] = deque()
        self._leaving: deque[tuple[Any, list[Any]]] = deque()

    def fetch(self, stored: States) -> States:
        """Starts to copy the states of a part to their parameters' device."""
        copies: list[tuple[Any, Any]] = []
        fetched: States = {}
        for parameter, of in stored.items():
            fetched[parameter] = states = dict(of)
            for name, state in of.items():
                if is_values(state) and id(parameter) not in self._staying:
                    states[name] = self._torch.empty_like(state, device=parameter.device)
                    copies.append((states[name], state))
        self._arrivals.append(self._copy(copies, [to for to, _ in copies], is_out=False))
        return fetched

    def begin(self) -> None:
        """Makes the program's stream wait for the copies of the next part."""
        event = self._arrivals.popleft()
        if event is not None:
            self._wait(event)

    def keep(self, states: States, stored: States) -> None:
        copies: list[tuple[Any, Any]] = []
        for parameter, of in states.items():
            host_states = stored[parameter]
            for name, state in of.items():
                if not is_values(state) or id(parameter) in self._staying:
                    host_states[name] = state
                    continue
                if name not in host_states:
                    host_states[name] = self._host_like(state)
                copies.append((host_states[name], state))
        event = self._copy(copies, [of for _, of in copies], is_out=True)
        self._leaving.append((event, copies))
        self._free_all_but(_NUM_LEAVING)

    def end(self) -> None:
        """Frees the device states of the last parts after their copies."""
        self._free_all_but(0)

    def settle(self) -> None:
        """Waits for the copies to the host."""
        for (_, is_out), stream in self._streams.items():
            if is_out:
                stream.synchronize()

    def _copy(self, copies: list[tuple[Any, Any]], on_device: list[Any], *, is_out: bool) -> Any:
        """Copies on a separate stream, after all work that is queued on the program's stream.

        Returns:
            the event after the copies, and the device; None on the CPU.
        """
        cuda = self._torch.cuda
        devices = {tensor.device for tensor in on_device if tensor.is_cuda}
        if len(devices) > 1:
            raise PlanError("'optimizer_offload': parameters are on several devices; expected one")
        if not devices:
            for to, of in copies:
                to.copy_(of)
            return None
        (device,) = devices
        if (device, is_out) not in self._streams:
            self._streams[device, is_out] = cuda.Stream(device)
        stream = self._streams[device, is_out]
        stream.wait_stream(cuda.current_stream(device))
        with cuda.stream(stream):
            for to, of in copies:
                to.copy_(of, non_blocking=True)
            return stream.record_event(), device

    def _wait(self, mark: Any) -> None:
        event, device = mark
        self._torch.cuda.current_stream(device).wait_event(event)

    def _host_like(self, state: Any) -> Any:
        kind = state.device.type
        if kind not in self._pinned:
            self._pinned[kind] = Pinned(pin=state.is_cuda)
        return self._pinned[kind].empty_like(state)

    def _free_all_but(self, num_kept: int) -> None:
        while len(self._leaving) > num_kept:
            event, _ = self._leaving.popleft()
            if event is not None:
                self._wait(event)


OPTIMIZER_OFFLOAD = Technique(
    name="optimizer_offload",
    does="stores optimizer states in pinned host memory, with a few on the GPU at a time",
    precondition="the optimizer updates each parameter independently",
    proof="its class must be in torch.optim, and not LBFGS",
    semantics=Semantics.SAME,
    place=Place.OPTIMIZER,
    reference="https://github.com/PrimeIntellect-ai/prime-rl/pull/1694",
    apply=_apply,
    settings={
        "part_mib": Setting(
            default=64, what="MiB of parameters whose states are fetched together", least=1
        ),
        "percent": Setting(
            default=_ALL, what="percent of the states, by bytes, that go to the host", least=1
        ),
    },
    variants=tuple({"percent": _ALL * eighths // 8} for eighths in range(1, 8)),
    excludes=("optimizer_in_backward", "bf16_states", "eight_bit_states"),
)
