"""Records itself in each mode, and prints what a test asks about: what is left after it, whether
the program is what it would be without, and what it counted.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import torch
import torch.optim.optimizer as optimizer_module
import torch.utils.data
import torch.utils.data.dataloader
from torch import nn

sys.path.insert(0, sys.argv[1])  # where ullage is
import ullage

MODULES = (
    torch, torch._C, torch.cuda, torch.cuda.memory, torch.autograd, torch.optim, optimizer_module,
    torch.nn.modules.module, torch.amp.grad_scaler, torch.utils.data, threading, os, sys, signal,
)  # fmt: skip
CLASSES = (
    nn.Module, nn.Linear, torch.optim.Optimizer, torch.optim.AdamW, torch.optim.SGD, torch.Tensor,
    torch.amp.GradScaler, torch.utils.data.DataLoader,
    torch.utils.data.dataloader._BaseDataLoaderIter,
)  # fmt: skip
STEPS = 4


def attributes() -> dict[str, int]:
    """Every attribute that could be replaced, and every hook that could be there, by identity."""
    places = {f"{owner.__name__}.{name}": id(value) for owner in (*MODULES, *CLASSES)
              for name, value in vars(owner).items()}  # fmt: skip
    for holder in (torch.nn.modules.module, optimizer_module):
        for name, hooks in vars(holder).items():
            if name.startswith("_global") and isinstance(hooks, dict):
                places |= {f"{name}[{key}]": id(hook) for key, hook in hooks.items()}
    places |= {f"meta_path[{number}]": id(finder) for number, finder in enumerate(sys.meta_path)}
    handlers = {f"signal {number}": id(signal.getsignal(number)) for number in (2, 15)}
    return places | handlers


def train() -> dict[str, Any]:
    """A few steps; what they came to."""
    torch.manual_seed(0)
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    peaks = []
    for step in range(STEPS):
        x = torch.randn(64 * (step + 1), 256).cuda()
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        peaks.append(torch.cuda.max_memory_allocated())
    stats = torch.cuda.memory_stats()
    return {
        "peaks": peaks,
        "allocated": stats["allocated_bytes.all.peak"],
        "reserved": stats["reserved_bytes.all.peak"],
        "requested": stats["requested_bytes.all.peak"],
        "segments": stats["segment.all.peak"],
        "random": [torch.rand(1).item(), float(torch.initial_seed())],
        "state": hash(torch.get_rng_state().numpy().tobytes()),
    }


def record(mode: str, path: Path) -> dict[str, Any]:
    before = attributes()
    recording = ullage.record.attach(path, mode=mode)
    during = attributes()
    result = train()
    published = sorted(path.parent.glob("ullage/jobs/*.json"))
    job = json.loads(published[0].read_text()) if published else None
    file = recording.detach()
    after = attributes()
    changed = {name for name in before | during if before.get(name) != during.get(name)}
    left = {name for name in before | after if before.get(name) != after.get(name)}
    return {
        "changed": sorted(changed), "left": sorted(left), "result": result, "job": job,
        "file": str(file), "is_published": any(path.parent.glob("ullage/jobs/*.json")),
    }  # fmt: skip


def fork_and_allocate(path: Path) -> dict[str, Any]:
    """A child that is forked while its parent is recorded."""
    recording = ullage.record.attach(path, mode="events")
    child = os.fork()
    if child == 0:
        nn.Linear(4, 4)(torch.ones(1, 4))
        is_clean = not optimizer_module._global_optimizer_pre_hooks
        os._exit(0 if is_clean else 1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    torch.empty(1 << 20, device="cuda")
    return {"child": status, "file": str(recording.detach())}


def fail_in_a_callback(path: Path) -> str:
    """ullage's own hook raises: the program goes on, and the record says so."""
    from ullage.players.inside.attached import current as recorder

    recording = ullage.record.attach(path, mode="events")
    current = recorder()
    assert current is not None

    def fail(_optimizer: object) -> None:
        raise ValueError("a defect")

    current.claims.claim_optimizer = fail
    train()
    return str(recording.detach())


def decorated(path: Path) -> str:
    """An exception passes through, and is in the record."""

    @ullage.record(path, mode="counters")
    def run() -> None:
        train()
        raise KeyError("its own")

    try:
        run()
    except KeyError:
        return str(path)
    return "no exception"


def main() -> None:
    directory = Path(sys.argv[2])
    unrecorded = train()
    torch.cuda.device_count()  # torch keeps the answer
    torch.cuda.empty_cache()
    document = {"unrecorded": unrecorded}
    for mode in ("full", "events", "counters"):
        document[mode] = record(mode, directory / f"{mode}.pickle")
    document["fork"] = fork_and_allocate(directory / "fork.pickle")
    document["failed"] = fail_in_a_callback(directory / "failed.pickle")
    document["decorated"] = decorated(directory / "decorated.ullage")
    document["again"] = str(ullage.record.attach(directory / "full.pickle").detach())
    print(json.dumps(document))


main()
