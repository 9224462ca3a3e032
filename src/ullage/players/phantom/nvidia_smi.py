"""nvidia-smi for programs on a phantom GPU: on their PATH, it answers the common questions.

    nvidia-smi                                          a table
    nvidia-smi -L                                       a line for each GPU
    nvidia-smi --query-gpu=name,memory.used --format=csv,noheader,nounits
    nvidia-smi --query-compute-apps=pid,used_memory --format=csv
    nvidia-smi -q -d MEMORY

What is known of a GPU, and of the processes of the run that use it, comes from the phantom's NVML,
so that the two agree. Unknown values are [N/A]. An option that it does not support is an error with
a message and exit code 2, as in NVIDIA's program.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ullage.ground.native.libraries import PHANTOM

NAME = "nvidia-smi"
WRONG_USE = 2
_UNKNOWN = "[N/A]"
_MIB = 2**20
_TEXT_BYTES = 96
_MAX_PROCESSES = 256


@dataclass(frozen=True, slots=True)
class Use:
    """The memory that a process uses on a GPU."""

    pid: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU as NVML describes it, and the processes that use it; clocks_mhz: the highest, of
    graphics, multiprocessors, memory and video; busy_percent: of the GPU and of its memory.
    """

    index: int
    name: str
    uuid: str
    bus_id: str
    total_bytes: int
    capability: str
    driver: str
    cuda: str
    clocks_mhz: tuple[str, ...]
    busy_percent: tuple[str, str]
    uses: tuple[Use, ...]

    @property
    def used_bytes(self) -> int:
        """The memory that all processes of the run use."""
        return sum(use.bytes for use in self.uses)


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class _Process(ctypes.Structure):
    _fields_ = [
        ("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("instances", ctypes.c_uint * 2),
    ]  # fmt: skip


class _Pci(ctypes.Structure):
    _fields_ = [
        ("legacy", ctypes.c_char * 16),
        *((name, ctypes.c_uint) for name in ("domain", "bus", "device", "id", "subsystem")),
        ("bus_id", ctypes.c_char * 32),
    ]


def read_cards() -> list[Card]:
    """Reads the GPUs of this run; there are none outside a run."""
    nvml = ctypes.CDLL(str(PHANTOM))
    count = ctypes.c_uint()
    if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return []
    return [_read_card(nvml, index) for index in range(count.value)]


def _read_card(nvml: ctypes.CDLL, index: int) -> Card:
    handle = ctypes.c_void_p()
    nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
    text = ctypes.create_string_buffer(_TEXT_BYTES)

    def ask(function: str, *before: ctypes.c_void_p) -> str:
        status = getattr(nvml, function)(*before, text, _TEXT_BYTES)
        return _UNKNOWN if status else text.value.decode(errors="replace")

    def ask_clock(kind: int) -> str:
        mhz = ctypes.c_uint()
        status = nvml.nvmlDeviceGetMaxClockInfo(handle, kind, ctypes.byref(mhz))
        return _UNKNOWN if status else str(mhz.value)

    memory, pci, cuda, busy = _Memory(), _Pci(), ctypes.c_int(), (ctypes.c_uint * 2)()
    is_busy_known = not nvml.nvmlDeviceGetUtilizationRates(handle, busy)
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
    has_pci = not nvml.nvmlDeviceGetPciInfo_v3(handle, ctypes.byref(pci))
    nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(cuda))
    has_capability = not nvml.nvmlDeviceGetCudaComputeCapability(
        handle, ctypes.byref(major), ctypes.byref(minor)
    )
    return Card(
        index=index,
        name=ask("nvmlDeviceGetName", handle),
        uuid=ask("nvmlDeviceGetUUID", handle),
        bus_id=pci.bus_id.decode() if has_pci else _UNKNOWN,
        total_bytes=memory.total,
        capability=f"{major.value}.{minor.value}" if has_capability else _UNKNOWN,
        driver=ask("nvmlSystemGetDriverVersion"),
        cuda=f"{cuda.value // 1000}.{cuda.value % 1000 // 10}",
        busy_percent=(str(busy[0]), str(busy[1])) if is_busy_known else (_UNKNOWN, _UNKNOWN),
        clocks_mhz=tuple(map(ask_clock, range(4))),
        uses=_uses(nvml, handle),
    )


def _uses(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> tuple[Use, ...]:
    """The memory that each running process of the run uses on a device."""
    count, processes = ctypes.c_uint(_MAX_PROCESSES), (_Process * _MAX_PROCESSES)()
    if nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), processes):
        return ()
    return tuple(Use(process.pid, process.used) for process in processes[: count.value])


# ---- Fields -------------------------------------------------------------------------------------


def _mib(num_bytes: int) -> tuple[str, str]:
    return str(num_bytes // _MIB), "MiB"


_GPU_FIELDS: dict[str, Callable[[Card], str | tuple[str, str]]] = {
    "index": lambda card: str(card.index),
    "count": lambda _card: str(len(read_cards())),
    "name": lambda card: card.name,
    "uuid": lambda card: card.uuid,
    "driver_version": lambda card: card.driver,
    "pci.bus_id": lambda card: card.bus_id,
    "compute_cap": lambda card: card.capability,
    "memory.total": lambda card: _mib(card.total_bytes),
    "memory.used": lambda card: _mib(card.used_bytes),
    "memory.free": lambda card: _mib(max(card.total_bytes - card.used_bytes, 0)),
    "memory.reserved": lambda _card: _mib(0),
    "utilization.gpu": lambda card: (card.busy_percent[0], "%"),
    "utilization.memory": lambda card: (card.busy_percent[1], "%"),
    "clocks.max.graphics": lambda card: (card.clocks_mhz[0], "MHz"),
    "clocks.max.sm": lambda card: (card.clocks_mhz[1], "MHz"),
    "clocks.max.memory": lambda card: (card.clocks_mhz[2], "MHz"),
    "persistence_mode": lambda _card: "Enabled",
    "compute_mode": lambda _card: "Default",
    "display_active": lambda _card: "Disabled",
    "display_mode": lambda _card: "Disabled",
    "mig.mode.current": lambda _card: _UNKNOWN,
    "timestamp": lambda _card: time.strftime("%Y/%m/%d %H:%M:%S.000"),
}
_GPU_ALIASES = {
    "gpu_name": "name",
    "gpu_uuid": "uuid",
    "gpu_bus_id": "pci.bus_id",
    "clocks.max.gr": "clocks.max.graphics",
    "clocks.max.mem": "clocks.max.memory",
}
# A simulated GPU does not have these values, and its NVML says so, too. NVIDIA's program prints
# [N/A] if a GPU lacks a value.
_UNKNOWN_FIELDS = (
    "clocks.", "power.", "fan.", "ecc.", "pcie.", "serial", "gpu_serial", "vbios_version",
    "memory.", "temperature.",
    "encoder.", "enforced.", "inforom.", "pci.", "display_",
    "accounting.", "clocks_", "pstate", "retired_pages.", "mig.", "gom.", "driver_model.",
)  # fmt: skip
_APP_FIELDS: dict[str, Callable[[Card, Use], str | tuple[str, str]]] = {
    "pid": lambda _card, use: str(use.pid),
    "process_name": lambda _card, use: _command_name(use.pid),
    "name": lambda _card, use: _command_name(use.pid),
    "used_memory": lambda _card, use: _mib(use.bytes),
    "used_gpu_memory": lambda _card, use: _mib(use.bytes),
    "gpu_name": lambda card, _use: card.name,
    "gpu_uuid": lambda card, _use: card.uuid,
    "gpu_bus_id": lambda card, _use: card.bus_id,
    "timestamp": lambda _card, _use: time.strftime("%Y/%m/%d %H:%M:%S.000"),
}


def _command_name(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return _UNKNOWN
    return words[0].decode(errors="replace") or _UNKNOWN


def _gpu_field(name: str) -> Callable[[Card], str | tuple[str, str]]:
    field = _GPU_FIELDS.get(_GPU_ALIASES.get(name, name))
    if field is None:
        if not name.startswith(_UNKNOWN_FIELDS):
            _refuse(f'Field "{name}" is not a valid field to query.')
        return lambda _card: _UNKNOWN
    return field


def _app_field(name: str) -> Callable[[Card, Use], str | tuple[str, str]]:
    field = _APP_FIELDS.get(name)
    if field is None:
        _refuse(f'Field "{name}" is not a valid field to query.')
    return field


# ---- Output -------------------------------------------------------------------------------------


def _csv(
    names: Sequence[str], rows: Sequence[Sequence[str | tuple[str, str]]], formats: frozenset[str]
) -> list[str]:
    """Lines as in NVIDIA's program: a header and values, with units unless `formats` omits them."""
    has_units = "nounits" not in formats
    lines = []
    if "noheader" not in formats:
        units = {"memory": " [MiB]", "used": " [MiB]", "utilization": " [%]", "power": " [W]",
                 "clocks": " [MHz]"}  # fmt: skip
        heads = [name + units.get(name.partition(".")[0].partition("_")[0], "") for name in names]
        lines.append(", ".join(heads if has_units else names))
    lines += [", ".join(_value(value, has_unit=has_units) for value in row) for row in rows]
    return lines


def _value(value: str | tuple[str, str], *, has_unit: bool) -> str:
    if isinstance(value, str):
        return value
    return " ".join(value) if has_unit and value[0] != _UNKNOWN else value[0]


def _list(cards: Sequence[Card]) -> list[str]:
    return [f"GPU {card.index}: {card.name} (UUID: {card.uuid})" for card in cards]


def _details(cards: Sequence[Card]) -> list[str]:
    """The lines of -q: the known properties of each GPU, and its memory."""
    lines = ["", "==============NVSMI LOG==============", ""]
    lines += [
        f"{'Driver Version':<42}: {cards[0].driver}",
        f"{'CUDA Version':<42}: {cards[0].cuda}",
    ]
    lines += ["", f"{'Attached GPUs':<42}: {len(cards)}"]
    for card in cards:
        free = max(card.total_bytes - card.used_bytes, 0)
        figures = {"Total": card.total_bytes, "Reserved": 0, "Used": card.used_bytes, "Free": free}
        lines += [f"GPU {card.bus_id}", f"    {'Product Name':<38}: {card.name}"]
        lines += [f"    {'GPU UUID':<38}: {card.uuid}", "    FB Memory Usage"]
        lines += [f"        {key:<34}: {value // _MIB} MiB" for key, value in figures.items()]
    return lines


def _table(cards: Sequence[Card]) -> list[str]:
    """The lines without options: the GPUs and the processes on them."""
    first = cards[0]
    rule, thin = f"+{'-' * 89}+", f"|{'-' * 89}|"
    head = (
        f"NVIDIA-SMI {first.driver:<18} Driver Version: {first.driver:<14} "
        f"CUDA Version: {first.cuda}"
    )
    lines = [time.strftime("%a %b %d %H:%M:%S %Y"), rule, f"| {head:<88}|", thin]
    lines += [f"| {'GPU  Name':<42}{'Bus-Id':<20}{'Memory-Usage':<20}{'Util':<6}|", thin]
    for card in cards:
        memory = f"{card.used_bytes // _MIB}MiB / {card.total_bytes // _MIB}MiB"
        left = f"{card.index:>3}  {card.name}"
        busy = "N/A" if card.busy_percent[0] == _UNKNOWN else f"{card.busy_percent[0]}%"
        lines.append(f"| {left:<41.41} {card.bus_id:<17} {memory:<21} {busy:<6}|")
    lines += [rule, "", rule, f"| {'Processes:':<88}|"]
    lines.append(f"| {'GPU        PID  Process name':<68}{'GPU Memory':>19} |")
    lines.append(thin)
    rows = [(card, use) for card in cards for use in card.uses]
    lines += [_line_of_use(card, use) for card, use in rows]
    if not rows:
        lines.append(f"| {'  No running processes found':<88}|")
    return [*lines, rule]


def _line_of_use(card: Card, use: Use) -> str:
    left = f"{card.index:>3} {use.pid:>10}  {_command_name(use.pid)}"
    return f"| {left:<68.68}{use.bytes // _MIB:>16}MiB |"


def _refuse(why: str) -> NoReturn:
    """Ends with an error message and an exit code that scripts can check."""
    print(f"{why} (this is ullage's {NAME}: the GPU is simulated)", file=sys.stderr)
    raise SystemExit(WRONG_USE)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        _refuse(f"Invalid combination of input arguments: {message}.")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(NAME, description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    parser.add_argument("-L", "--list-gpus", action="store_true")
    parser.add_argument("-q", "--query", action="store_true")
    parser.add_argument("-d", "--display", help="of -q: sections; all that is known is shown")
    parser.add_argument("-i", "--id", help="indices, UUIDs or bus ids")
    parser.add_argument("--query-gpu", metavar="FIELDS")
    parser.add_argument("--query-compute-apps", metavar="FIELDS")
    parser.add_argument("--format", default="", help="csv[,noheader][,nounits]")
    parser.add_argument("-l", "--loop", type=float, nargs="?", const=5.0, metavar="SECONDS")
    parser.add_argument("-lms", "--loop-ms", type=float, metavar="MILLISECONDS")
    parser.add_argument("--version", action="store_true")
    return parser


def _answer(options: argparse.Namespace, cards: Sequence[Card]) -> list[str]:
    formats = frozenset(options.format.replace(" ", "").split(",")) - {""}
    query = options.query_gpu or options.query_compute_apps
    if query and "csv" not in formats:
        _refuse("--format=csv is needed with a query.")
    names = [name.strip() for name in (query or "").split(",")]
    if options.query_gpu:
        gpu_fields = [_gpu_field(name) for name in names]
        return _csv(names, [[field(card) for field in gpu_fields] for card in cards], formats)
    if options.query_compute_apps:
        app_fields = [_app_field(name) for name in names]
        uses = [(card, use) for card in cards for use in card.uses]
        return _csv(names, [[field(*use) for field in app_fields] for use in uses], formats)
    if options.version:
        first = cards[0]
        return [f"NVIDIA-SMI version  : {first.driver}", f"DRIVER version      : {first.driver}"]
    if options.list_gpus:
        return _list(cards)
    return _details(cards) if options.query else _table(cards)


def _chosen(cards: Sequence[Card], text: str | None) -> list[Card]:
    if text is None:
        return list(cards)
    words = [word.strip() for word in text.split(",")]
    chosen = [card for card in cards if {str(card.index), card.uuid, card.bus_id} & set(words)]
    if len(chosen) < len(words):
        _refuse(f"No devices were found for {text!r}; there are {len(cards)}.")
    return chosen


def main(arguments: Sequence[str] | None = None) -> None:
    """Answers once, or repeatedly with -l."""
    options = _parser().parse_args(arguments)
    pause_s = options.loop_ms / 1000 if options.loop_ms is not None else options.loop
    while True:
        cards = read_cards()
        if not cards:
            print("No devices were found", file=sys.stderr)
            raise SystemExit(6)
        print("\n".join(_answer(options, _chosen(cards, options.id))), flush=True)
        if pause_s is None:
            return
        time.sleep(pause_s)
