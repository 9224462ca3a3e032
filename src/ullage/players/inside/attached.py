"""Who records this process, for what torch and Python cannot forget again: they call whoever is
attached, or nobody.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

from ullage.players.inside import torch_internals

if TYPE_CHECKING:
    from ullage.players.inside.recorder import Recorder

attached: list[Recorder] = []
"""At most one."""
_is_registered = False


def current() -> Recorder | None:
    """The recorder of this process; None: nothing records it."""
    return attached[0] if attached else None


def register_once(torch: Any) -> None:
    """Has torch tell of allocations that fail, and Python of forked children."""
    global _is_registered
    if _is_registered:
        return
    _is_registered = True
    torch.cuda._lazy_call(functools.partial(_observe, torch))
    os.register_at_fork(after_in_child=_leave)


def _observe(torch: Any) -> None:
    observe = torch_internals.find(torch, "torch._C._cuda_attach_out_of_memory_observer")
    if observe is not None and torch.cuda.get_allocator_backend() == "native":  # others have none
        observe(_pass_oom)


def _pass_oom(*failure: int) -> None:
    for recorder in attached:
        recorder.unseen.run("note_oom", recorder.note_oom, *failure)


def _leave() -> None:
    for recorder in attached:
        recorder.leave()
