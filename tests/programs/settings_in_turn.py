"""What the allocator's settings do: settings_in_turn.py CASE SETTINGS [CASE SETTINGS]...

Each case runs in a process of its own, forked before the GPU is touched, under its settings (""
for none), and counts in MiB what shows their effect. Prints what they found as one JSON line.
"""

import json
import os
import sys

import torch

MIB = 2**20
GPU_MIB = 2048


def empty(mib: float, **where: object) -> torch.Tensor:
    """That many MiB, on the GPU unless said otherwise."""
    return torch.empty(int(mib * MIB), dtype=torch.uint8, **(where or {"device": "cuda"}))


def current(name: str) -> float:
    """A current figure of the caching allocator, in MiB."""
    return torch.cuda.memory_stats()[f"{name}_bytes.all.current"] / MIB


def rounding() -> object:
    """What blocks of 5 and of 33 MiB and a few bytes take."""
    first = empty(5.001)
    took = current("allocated")
    second = empty(33.001)
    del first, second
    return [took, current("reserved")]


def splitting() -> object:
    """What is reserved after a request that a large cached block could serve in part, and after
    one that it could nearly serve whole.
    """
    large = empty(256)
    del large
    small = empty(40)
    after_small = current("reserved")
    del small
    torch.cuda.empty_cache()
    large = empty(256)
    del large
    nearly = empty(226)
    found = [after_small, current("reserved")]
    del nearly
    return found


def packing() -> object:
    """What is reserved for one block of 5 MiB, and for one of 40 and a bit."""
    first = empty(5)
    packed = current("reserved")
    second = empty(40.5)
    found = [packed, current("reserved") - packed]
    del first, second
    return found


def growing() -> object:
    """Segments, those that can grow, and what they hold, when ever larger blocks follow."""
    for mib in (40, 80, 120, 160):
        block = empty(mib)
        del block
    segments = torch.cuda.memory_snapshot()
    return [len(segments), sum(s["is_expandable"] for s in segments), current("reserved")]


def collecting() -> object:
    """What is reserved when old cached blocks are many, of what the process may take."""
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction(GPU_MIB * MIB / total)
    for mib in range(200, 208):
        block = empty(mib)
        held = block if mib == 200 else None
        del block
    cached = [empty(mib) for mib in (250, 251, 252)]
    del cached
    last = empty(253)
    found = [current("reserved"), torch.cuda.memory_stats()["num_device_free"]]
    del held, last
    return found


def limit() -> object:
    """How many blocks of a sixteenth of the GPU there are, each rounded up, and why no more."""
    sixteenth = torch.cuda.mem_get_info()[1] / MIB / 16
    blocks: list[torch.Tensor] = []
    try:
        while len(blocks) < 16:
            blocks.append(empty(sixteenth))
    except torch.OutOfMemoryError as error:
        return [len(blocks), str(error)]
    return [len(blocks), ""]


def largest() -> object:
    """How a block of half the GPU is refused, if it is."""
    try:
        block = empty(torch.cuda.mem_get_info()[1] / MIB / 2)
    except (torch.OutOfMemoryError, RuntimeError) as error:
        return str(error)
    del block
    return ""


def pinned() -> object:
    """Pinned MiB held for 3 MiB and a bit, then with 40 more, and when both have been let go."""
    torch.cuda.init()

    def held() -> float:
        stats = torch.cuda.host_memory_stats()
        # Cached blocks included: torch 2.7 to 2.9 has them under a name of their own.
        return stats.get("reserved_bytes.current", stats["allocated_bytes.current"]) / MIB

    found = []
    block = empty(3.001, pin_memory=True)
    found.append(held())
    large = empty(40, pin_memory=True)
    found.append(held())
    del block, large
    empty(0.5, pin_memory=True)
    found.append(held())
    return found


def set_settings(settings: str) -> None:
    """torch's own call for all accelerators, or its older one for CUDA."""
    set_for_all = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    (set_for_all or torch.cuda.memory._set_allocator_settings)(settings)


def run(case: str, settings: str) -> object:
    """What a case found, or the error that its settings met."""
    try:
        if settings:
            set_settings(settings)
        return globals()[case]()
    except (RuntimeError, ValueError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"


def run_in_child(case: str, settings: str) -> object:
    """The same, without a trace in this process."""
    read, write = os.pipe()
    if os.fork() == 0:
        with os.fdopen(write, "w") as file:
            json.dump(run(case, settings), file)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        text = file.read()
    os.wait()
    return json.loads(text) if text else "the process died"


if __name__ == "__main__":
    words = sys.argv[1:]
    print(json.dumps([run_in_child(*pair) for pair in zip(words[::2], words[1::2], strict=True)]))
