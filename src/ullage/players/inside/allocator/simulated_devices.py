"""The simulated GPU's own knowledge: the allocator's events, what libraries and the driver hold,
what was used when, and what was answered by a model.
"""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any

from ullage.ground.protocol.variables import device_property
from ullage.players.inside import library
from ullage.players.inside.allocator.ooms import OutOfMemories
from ullage.players.inside.allocator.peaks import Peaks
from ullage.players.inside.part import Part
from ullage.players.inside.patches import Patches
from ullage.players.inside.process import host
from ullage.players.inside.unseen import Unseen

_UNCACHED = "PYTORCH_NO_CUDA_MEMORY_CACHING"


class SimulatedDevices(Part):
    """The devices of this process; `ooms` is told of what torch tells nobody."""

    def __init__(
        self, torch: ModuleType, peaks: Peaks, ooms: OutOfMemories, unseen: Unseen
    ) -> None:
        self._torch = torch
        self._peaks = peaks
        self._ooms = ooms
        self._unseen = unseen
        self._remarks: list[str] = []
        self._num_lost = 0

    def install(self, _patches: Patches) -> None:
        """Has pinned memory watched."""
        library.watch_pinned()

    def begin(self) -> None:
        """Torch tells of no failure where its own allocator does not keep the memory."""
        is_uncached = _UNCACHED in os.environ
        if is_uncached:
            self._remarks.append(
                f"{_UNCACHED} is set: tensors are taken from the driver, so that they have no "
                "owners and are in the line of other libraries"
            )
        if is_uncached or self._torch.cuda.get_allocator_backend() != "native":
            library.on_request(self._unseen.guard(self._ooms.note_request))

    def device_fields(self, index: int) -> dict[str, Any]:
        """The bytes that the driver and libraries held of a device."""
        non_torch_bytes = library.non_torch_peak_bytes(index)
        if self._torch.cuda.get_allocator_backend() != "native":
            # The driver's pool is what PyTorch reserves.
            reserved_bytes = self._peaks.of_device(index)["peak_reserved_bytes"]
            non_torch_bytes = max(0, non_torch_bytes - reserved_bytes)
        return {
            "context_bytes": int(device_property(os.environ, "context_bytes") or 0),
            "non_torch_bytes": non_torch_bytes,
            "outside": [size.row() for size in library.outside(index)],
            "peak_of_all_bytes": library.peak_of_all_bytes(index),
            "place": library.place_of(index),
        }

    def fields(self) -> dict[str, Any]:
        """The events, and what else is known by their positions."""
        events = library.events()
        self._num_lost = library.position() - len(events["device"])
        return {
            "events": events,
            "workspaces": library.workspaces(),
            **library.usage(len(events["device"])),
            "basis": library.basis(),
            "operands": library.operands(),
            "num_not_yet": library.num_not_yet(),
            "host_needed_bytes": host.needed_bytes(),
            "pinned_peak_bytes": library.pinned_peak_bytes(),
            "pinned_low_peak_bytes": library.pinned_low_peak_bytes(),
            "pinned_asked_peak_bytes": library.pinned_asked_peak_bytes(),
        }

    def remarks(self) -> list[str]:
        """The remarks on what has no owners, and on missing events."""
        if self._num_lost <= 0:
            return self._remarks
        lost = (
            f"the last {self._num_lost} allocator events were not kept: owners and steps end "
            "before the program did; use --steps to stop earlier"
        )
        return [*self._remarks, lost]
