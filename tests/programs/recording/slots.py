"""Prints what torch's libraries call before, during and after recordings, by their own tables of
calls; and what was recorded of more copies than are kept.

slots.py SOURCE DIRECTORY
"""

from __future__ import annotations

import ctypes
import json
import struct
import sys
from pathlib import Path

import torch

sys.path.insert(0, sys.argv[1])  # where ullage is
import ullage

LIBRARIES = ("libtorch_cuda.so", "libc10_cuda.so", "libtorch_python.so")
SECTION = struct.Struct("<IIQQQQIIQQ")
RELOCATION = struct.Struct("<QQq")
SYMBOL_BYTES = 24
NUM_COPIES = (1 << 15) + 1000


def mapped(name: str) -> tuple[int, Path]:
    """Where a library begins in memory, and its file."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(f"/{name}"):
            return int(line.split("-")[0], 16), Path(line.split(maxsplit=5)[5])
    raise SystemExit(f"{name} is not loaded")


def slots_of(name: str) -> dict[str, int]:
    """The addresses of the slots by which a library calls the CUDA runtime and libc10."""
    base, path = mapped(name)
    with path.open("rb") as file:
        header = file.read(64)
        (offset,) = struct.unpack_from("<Q", header, 40)
        count, of_names = struct.unpack_from("<HH", header, 60)
        file.seek(offset)
        sections = list(SECTION.iter_unpack(file.read(SECTION.size * count)))

        def content(section: tuple[int, ...]) -> bytes:
            file.seek(section[4])
            return file.read(section[5])

        names = content(sections[of_names])
        by_name = {names[s[0] : names.index(b"\0", s[0])].decode(): s for s in sections}
        texts, symbols = content(by_name[".dynstr"]), content(by_name[".dynsym"])
        slots = {}
        for place, info, _ in RELOCATION.iter_unpack(content(by_name[".rela.plt"])):
            (text,) = struct.unpack_from("<I", symbols, SYMBOL_BYTES * (info >> 32))
            symbol = texts[text : texts.index(b"\0", text)].decode()
            if symbol.startswith("cuda") or "Profiler" in symbol:
                slots[f"{name} {symbol}"] = base + place
    return slots


def copy_much(large: torch.Tensor) -> None:
    """As many copies as a ring does not keep; the last one is larger, and of memory that was pinned
    before.
    """
    small = torch.empty(1 << 16, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    for _ in range(NUM_COPIES):
        target[: 1 << 16].copy_(small, non_blocking=True)
    target.copy_(large)


def main() -> None:
    torch.zeros(1 << 20).pin_memory().cuda().sum().item()  # what is looked up lazily is there
    large = torch.empty(1 << 20, dtype=torch.uint8, pin_memory=True)
    slots = {name: place for library in LIBRARIES for name, place in slots_of(library).items()}

    def look() -> dict[str, int | None]:
        return {name: ctypes.c_void_p.from_address(place).value for name, place in slots.items()}

    looks = [look()]
    for mode in ("events", "full", "counters"):
        recording = ullage.record.attach(f"{sys.argv[2]}/{mode}.pickle", mode=mode, publish=False)
        looks.append(look())
        if mode == "events":
            copy_much(large)
        recording.detach()
        looks.append(look())
    changed = [[name for name in slots if each[name] != looks[0][name]] for each in looks]
    print(json.dumps({"changed": changed, "num_copies": NUM_COPIES + 1}))


main()
