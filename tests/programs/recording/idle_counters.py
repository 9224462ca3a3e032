"""Allocates unrecorded, under counters and under events; prints what each has to do with that.

python idle_counters.py SOURCE_OF_ULLAGE
"""

import json
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

sys.path.insert(0, sys.argv[1])
import ullage
from ullage.ground.native.libraries import EVENT_HOOK
from ullage.players.inside.attached import current

OURS = str(Path(ullage.__file__).parent)


class Allocating(nn.Module):
    """A module whose forward allocates and frees."""

    def forward(self) -> None:
        """A hundred blocks."""
        for _ in range(100):
            torch.empty(256, device="cuda")


def own_calls() -> list[str]:
    """The functions of ullage that are called while memory is allocated."""
    calls: list[str] = []

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            calls.append(frame.f_code.co_qualname)

    module = Allocating()
    sys.setprofile(note)
    module()
    sys.setprofile(None)
    return calls


def entry_slots() -> list[int]:
    """What every function of torch._C that is about memory is at this moment."""
    return [id(value) for name, value in sorted(vars(torch._C).items()) if "emory" in name]


def look() -> dict[str, Any]:
    """What there is between a program and its memory."""
    recorder = current()
    places = [] if recorder is None else recorder.patches.places
    return {
        "calls": own_calls(),
        "is_hook_loaded": str(EVENT_HOOK) in Path("/proc/self/maps").read_text(),
        "num_noted": sum(map(len, torch.cuda.memory._snapshot()["device_traces"])),
        "replaced": sorted({name for _owner, name, _before in places}),
        "entries": entry_slots(),
    }


def main() -> None:
    """Counters before events: what that loads stays."""
    torch.cuda.init()
    looks = {"unrecorded": look()}
    for mode in ("counters", "events"):
        recording = ullage.record.attach(None, mode=mode, publish=False)
        looks[mode] = look()
        recording.detach()
    print(json.dumps(looks))


main()
