"""The text of `ullage watch`: a tree of GPUs, jobs and processes, with bars and sparklines.

    print_watch(view(sample), history, board.alerts, Console())

The page draws the same lines; each says what it is about.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ullage.ground.printable import printable
from ullage.ground.protocol.job import Job
from ullage.operate.watch.alerts.board import Alerts
from ullage.operate.watch.history import History
from ullage.operate.watch.sample import DeviceSample, ProcessKind, ProcessSample, Sample
from ullage.operate.watch.sharing import Sharing
from ullage.operate.watch.view import GpuView, JobView, View
from ullage.verbs.watch.alerts_text import active_rows
from ullage.verbs.watch.text_parts import (
    BARS,
    Words,
    draw_memory,
    draw_spark,
    join_spans,
    pieces_of,
    say_duration,
    say_size,
)

_WIDE: Final = 120
_SPARK: Final = 20
_MAX_NAME: Final = 40
_MAX_PROCESSES: Final = 10
_STALE_S: Final = 10.0
_SOON_S: Final = 600.0
_SHARING: Final[Mapping[Sharing | None, str]] = {
    Sharing.TIME_SLICING: "time-sliced",
    Sharing.MPS: "MPS",
    Sharing.MPS_AND_TIME_SLICING: "MPS, time-sliced",
    Sharing.MIG: "MIG",
}
_ALARM, _DIM, _NAME = "bold red", "bright_black", "bold"
_GAP: Final = ("  ", "")


@dataclass(frozen=True, slots=True)
class Style:
    """How lines are drawn: how wide, whether in ASCII, and how many processes at most."""

    width: int
    is_ascii: bool = False
    max_processes: int = _MAX_PROCESSES

    @property
    def is_wide(self) -> bool:
        """True if there is room for what is nice to know."""
        return self.width >= _WIDE


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the tree; `pid` is that of its job or process, None for a GPU's own."""

    text: Text
    position: int | None = None
    pid: int | None = None


def print_watch(
    machine: View, history: History, alerts: Alerts, console: Console | None = None
) -> None:
    """Prints the whole state."""
    console = console or Console()
    style = Style(console.width, console.options.ascii_only)
    texts = [head_line(machine.sample)]
    for position, gpu in enumerate(machine.gpus):
        texts += [Text(), *(line.text for line in gpu_lines(gpu, position, history, style))]
    texts += [_elsewhere(job) for job in machine.elsewhere]
    rows = active_rows(alerts.active, machine.sample.time_s, style.width, len(alerts.active))
    texts += [Text(), *rows] if rows else []
    texts += [Text(), legend(style)]
    with console.capture() as capture:
        for text in texts:
            text.rstrip()
            console.print(text, no_wrap=True, overflow="crop", crop=True, highlight=False)
        for note in note_lines(machine.sample):
            console.print(note, highlight=False)
    printed = capture.get()
    if style.is_ascii:
        printed = printed.replace("°C", "C").encode("ascii", "replace").decode("ascii")
    console.file.write(printed)


def head_line(sample: Sample) -> Text:
    """The machine, the moment, and how much there is."""
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(sample.time_s))
    gpus = sum(device.mig is None for device in sample.devices)
    words = [f"{gpus} GPU{'s' * (gpus != 1)}"]
    words += [f"{len(sample.jobs)} recorded job{'s' * (len(sample.jobs) != 1)}"]
    words += [f"driver {sample.driver_version}"] if sample.driver_version else []
    return Text.assemble((printable(sample.host), _NAME), f"  {moment}  {', '.join(words)}")


def legend(style: Style) -> Text:
    """The meaning of a bar's pieces."""
    text = Text()
    for bar in BARS:
        mark = bar.ascii_mark if style.is_ascii else bar.mark
        text.append(f"{mark} ", bar.style).append(f"{bar.label}  ", _DIM)
    return text


def note_lines(sample: Sample) -> list[Text]:
    """Why values are unknown; one line for each reason."""
    reasons: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for note in sample.notes:
        reasons.setdefault((note.reason, note.devices), []).append(note.field)
    lines = []
    for (reason, devices), fields in reasons.items():
        where = f" (GPU {', '.join(map(str, devices))})" if devices else ""
        lines.append(Text(printable(f"{', '.join(fields)}{where}: {reason}"), _DIM))
    return lines


def gpu_lines(
    gpu: GpuView, position: int, history: History, style: Style, whole: GpuView | None = None
) -> list[Line]:
    """A GPU: its state, its memory, then its jobs and processes as branches.

    Args:
        gpu: with the jobs and processes to show.
        position: its place in the sample.
        history: of its memory and load.
        style: how it is drawn.
        whole: the GPU with all of them, for the bar; None: `gpu` has all.
    """
    device = gpu.device
    lines = [Line(_state(gpu, style), position)]
    if device.is_lost:
        return lines
    lines.append(Line(_memory(whole or gpu, history, style), position))
    others = sorted(gpu.others, key=lambda each: -(each.used_bytes or 0))
    shown = others[: style.max_processes]
    branches = [list(_job(job, style)) for job in gpu.jobs]
    pids = [job.job.pid for job in gpu.jobs]
    branches += [[_process(process, style)] for process in shown]
    pids += [process.pid for process in shown]
    if len(others) > len(shown):
        branches.append([_rest(others[len(shown) :])])
        pids.append(-1)
    for number, (branch, pid) in enumerate(zip(branches, pids, strict=True)):
        is_last = number == len(branches) - 1
        for row, text in enumerate(branch):
            stem = _stem(is_first=row == 0, is_last=is_last, is_ascii=style.is_ascii)
            line = Text.assemble((stem, _DIM), text)
            lines.append(Line(line, position, pid if pid >= 0 else None))
    return lines


def _stem(*, is_first: bool, is_last: bool, is_ascii: bool) -> str:
    fork, end, line = ("  |- ", "  `- ", "  |  ") if is_ascii else ("  ├─ ", "  └─ ", "  │  ")
    if is_first:
        return end if is_last else fork
    return "     " if is_last else line


def _state(gpu: GpuView, style: Style) -> Text:
    """The name, and at the right edge load, temperature, power and clock."""
    device = gpu.device
    number = f"GPU {device.index}"
    if device.mig is not None:
        number = f"  MIG {device.mig.gpu_instance}.{device.mig.compute_instance}"
    left = [(number, _NAME), ("  ", "")]
    if gpu.sharing in _SHARING:
        left.append((f"{_SHARING[gpu.sharing]}  ", "cyan"))
    left.append((printable(device.name or "unknown GPU"), ""))
    if device.is_lost:
        return join_spans([*left, ("  LOST", _ALARM)])
    right = [words for figure in _figures(device, style) for words in (_GAP, figure)][1:]
    room = style.width - sum(cell_len(part) for part, _ in right) - 2
    rest = room - sum(cell_len(part) for part, _ in left)
    if rest >= 0:
        return join_spans([*left, (" " * rest, ""), _GAP, *right])
    cut = join_spans(left)
    cut.truncate(max(room, len(number)), overflow="ellipsis", pad=True)
    return Text.assemble(cut, "  ", join_spans(right))


def _figures(device: DeviceSample, style: Style) -> Iterator[Words]:
    """The figures beside memory; what is not known is left out, and is in the notes."""
    if device.ecc_uncorrected:
        yield f"ECC {device.ecc_uncorrected}", _ALARM
    slow = (device.throttle_reasons or frozenset()) - {"clocks_setting", "display_clock_setting"}
    if slow:
        yield ", ".join(sorted(slow)) if style.is_wide else "throttled", "yellow"
    if style.is_wide and device.pcie_tx_bytes_per_s is not None:
        sent, received = device.pcie_tx_bytes_per_s, device.pcie_rx_bytes_per_s
        yield f"PCIe {say_size(sent)}/s out, {say_size(received)}/s in", _DIM
    if device.gpu_frac is not None:
        yield f"{device.gpu_frac:>4.0%} busy", ""
    if device.sm_active_frac is not None:
        yield f"SM {device.sm_active_frac:>3.0%}", ""
    if style.is_wide and device.dram_active_frac is not None:
        yield f"DRAM {device.dram_active_frac:>3.0%}", ""
    if style.is_wide and device.memory_frac is not None:
        yield f"{device.memory_frac:.0%} of bandwidth", ""
    if device.temperature_c is not None:
        limit = device.slowdown_c
        is_hot = limit is not None and device.temperature_c >= limit - 3
        yield f"{device.temperature_c} °C", _ALARM if is_hot else ""
    if device.power_w is not None:
        limit_w = device.power_limit_w
        yield f"{device.power_w:.0f}{f'/{limit_w:.0f}' if limit_w else ''} W", ""
    if device.sm_clock_mhz is not None:
        most = device.sm_clock_max_mhz
        yield f"{device.sm_clock_mhz}{f'/{most}' if most and style.is_wide else ''} MHz", ""


def _memory(gpu: GpuView, history: History, style: Style) -> Text:
    device, course = gpu.device, history.of(gpu.device)
    if device.used_bytes is None or device.total_bytes is None:
        return Text("  memory unknown", _DIM)
    free = (
        device.total_bytes - device.used_bytes if device.free_bytes is None else device.free_bytes
    )
    share = device.used_bytes / device.total_bytes if device.total_bytes else 0.0
    sizes = f"  {say_size(device.used_bytes)} of {say_size(device.total_bytes)}, {share:.0%}"
    sizes += f", {say_size(free)} free" if style.is_wide else ""
    sparks: list[Words] = []
    count = _SPARK if style.is_wide else _SPARK // 2
    if len(course.used_fracs) > 1:
        courses = (("mem", course.used_fracs), ("busy", course.gpu_fracs))
        for label, values in courses if style.is_wide else courses[:1]:
            spark = draw_spark(values, count, is_ascii=style.is_ascii)
            if spark.strip():
                sparks += [(f"  {label} ", _DIM), (f"{spark:>{count}}", "")]
    width = style.width - 2 - len(sizes) - sum(len(part) for part, _ in sparks)
    bar = draw_memory(pieces_of(gpu), max(width, 10), is_ascii=style.is_ascii)
    return join_spans([_GAP, *bar, (sizes, ""), *sparks])


def _job(view: JobView, style: Style) -> Iterator[Text]:
    """Who and where it is; then its memory; both in one line if there is room."""
    job = view.job
    # What is alarming comes first: a narrow line loses its end.
    head = Text.assemble((printable(job.name[:_MAX_NAME]), _NAME), f"  {job.pid}")
    if view.age_s > _STALE_S:
        head.append(f"  silent for {say_duration(view.age_s)}", "yellow")
    forecast = _forecast(view)
    if not style.is_wide:
        head.append_text(forecast)
    words = []
    if job.rank is not None:
        words.append(f"rank {job.rank}" + (f" of {job.world_size}" if job.world_size else ""))
    words += [job.phase] if job.phase else []
    if job.step is not None:
        seconds = f", {_say_step(job.step_seconds)}" if job.step_seconds is not None else ""
        words.append(f"step {job.step}{seconds}")
    words += [f"{job.scaler_skips} steps skipped by the scaler"] if job.scaler_skips else []
    head.append(printable("".join(f"  {word}" for word in words)))
    memory = _job_memory(view)
    if style.is_wide:
        memory.append_text(forecast)
    if job.step_peaks and style.is_wide:
        most = view.limit_bytes or view.device.total_bytes or 1
        values = [peak.allocated_peak_bytes / most for peak in job.step_peaks]
        memory.append("  steps ", _DIM).append(draw_spark(values, _SPARK, is_ascii=style.is_ascii))
    if style.is_wide and head.cell_len + memory.cell_len + 8 <= style.width:
        yield Text.assemble(head, "  ", memory)
    else:
        yield head
        yield memory


def _say_step(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"


def _job_memory(view: JobView) -> Text:
    device = view.device
    allocated = say_size(device.allocated_bytes)
    unit = allocated[allocated.find(" ") :]

    def say(num_bytes: int) -> str:
        """Without the unit, if it is that of the first size."""
        return say_size(num_bytes).removesuffix(unit)

    text = Text(f"{allocated} allocated, {say(device.reserved_bytes)} reserved")
    if device.inactive_split_bytes:
        text.append(f" ({say(device.inactive_split_bytes)} fragmented)")
    if view.headroom_bytes is not None:
        text.append(f", {say(max(view.headroom_bytes, 0))} to the limit")
    if device.num_ooms:
        text.append(f", {device.num_ooms} OOM", _ALARM)
    return text


def _forecast(view: JobView) -> Text:
    """When it will be full; empty if that is not foreseen."""
    if view.forecast is None:
        return Text()
    is_soon = view.forecast.seconds < _SOON_S
    duration = say_duration(view.forecast.seconds)
    return Text(f"  full in {duration}", _ALARM if is_soon else "yellow")


def _process(process: ProcessSample, style: Style) -> Text:
    name = process.name or ("outside this container" if not process.is_own else "unknown")
    words = [str(process.pid), say_size(process.used_bytes)]
    words += [f"{process.sm_frac:.0%} busy"] if process.sm_frac is not None else []
    words += [process.kind.value] if process.kind is not ProcessKind.COMPUTE else []
    words += [process.user] if process.user else []
    for label, value in (
        ("job", process.slurm_array or process.slurm_job),
        ("pod", process.pod_name or process.pod),
        ("container", process.container_name or process.container),
    ):
        if value:
            words.append(f"{label} {value if style.is_wide and label == 'pod' else value[:12]}")
    return Text(printable(f"{name}  {'  '.join(words)}"))


def _rest(processes: Sequence[ProcessSample]) -> Text:
    sizes = [process.used_bytes for process in processes]
    known = sum(size for size in sizes if size is not None)
    return Text(f"{len(processes)} more processes, {say_size(known)}", _DIM)


def _elsewhere(job: Job) -> Text:
    """A job whose GPU is not among those here."""
    return Text(printable(f"{job.name}  {job.pid}  on no GPU of this machine"), _DIM)
