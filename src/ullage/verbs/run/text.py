"""The view of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ullage.answers import block_kinds as b
from ullage.explain.compare.ranks import name_ranks
from ullage.explain.device import DeviceReport
from ullage.explain.owners.modules import merge_numbered
from ullage.explain.run import RunReport
from ullage.explain.stops import describe_stop
from ullage.explain.verdict import Verdict
from ullage.ground.printable import printable
from ullage.ground.units import format_bytes
from ullage.log.assumptions import Assumption
from ullage.log.model import StepKind
from ullage.verbs.run.text_parts import (
    assumed_bytes,
    basis_parts,
    host_table,
    list_assumptions,
    peak_table,
    step_table,
)
from ullage.verbs.text.modules import module_table
from ullage.verbs.views.module_names import name_module
from ullage.verbs.views.palette import (
    CACHE_LOOK,
    CATEGORY_LOOKS,
    CONTEXT_LOOK,
    FREE_LOOK,
    NON_TORCH_LOOK,
    OTHERS_LOOK,
)

if TYPE_CHECKING:
    from ullage.explain.rules.rule import Finding

_NAMED_GPUS = 8
_MAX_OWNERS = 3
# Without details, parts are omitted that are smaller than the device's memory divided by this.
_SMALL_SHARE = 2000
_TONES = {
    Verdict.FITS: b.Tone.GOOD,
    Verdict.OUT_OF_MEMORY: b.Tone.BAD,
    Verdict.FAILED: b.Tone.DOUBTFUL,
}


def verdict_line(report: RunReport) -> str:
    """The verdict alone, as one line without colour."""
    return _verdict(report).plain


def run_blocks(report: RunReport, findings: Sequence[Finding] = ()) -> Iterator[b.Block]:
    """The verdict, the owners of the memory, the basis, and what the largest finding is worth."""
    fullest = _fullest(report)
    yield from _head(report)
    margins = "" if fullest is None else _other_margins(fullest)
    lines = filter(None, (_run_line(report), margins))
    yield b.Detail(b.Note(line, b.Tone.FAINT, indent=2) for line in lines)
    yield from _problems(report)
    if fullest is None:
        return
    yield b.Title(_ledger_title(fullest, report.devices))
    yield b.Detail((_ledger_table(fullest),), (_ledger_table(fullest, is_brief=True),))
    owners = _owners_line(fullest)
    yield b.Detail(_device_parts(fullest), (b.Note(owners, hang=2),) if owners else ())
    if len(report.devices) > 1 or report.covers:
        yield from _all_devices(report.devices, dict(report.covers))
    if report.time is not None:
        from ullage.verbs.text.time.section import time_blocks

        yield from time_blocks(report, report.time)
    if any(process.record.measured for process in report.processes):
        from ullage.verbs.text.pressure import pressure_blocks

        yield from pressure_blocks([process.record for process in report.processes])
    host = (b.Title("Host memory"), host_table(report.host))
    yield b.Detail((*host, *basis_parts(report)), (_basis(report),))
    if report.is_unlimited:
        yield b.Detail((b.SPACE,))
        yield b.Note(_fitting_gpus(report))
    if findings:
        worth = _worth_line(report, findings)
        yield b.Detail((), (b.Note(worth, b.Tone.PLAIN, b.Overflow.KEEP),))


def _fullest(report: RunReport) -> DeviceReport | None:
    """The device with the highest use; of those that ran out of memory, where some did."""
    return max(report.devices, key=lambda d: (d.oom is not None, d.peak_used_bytes), default=None)


def _head(report: RunReport) -> Iterator[b.Block]:
    """The verdict, the program, and its plan or steps if it had any."""
    yield _verdict(report)
    words = printable(" ".join(report.program.argv))
    yield b.Note(words, b.Tone.FAINT, b.Overflow.CUT, indent=2)
    if report.program.plan is not None and report.program.plan.plan is not None:
        yield b.Note(f"under a plan: {report.program.plan.plan.summary}", b.Tone.FAINT, indent=2)
    if report.stop is not None:
        yield b.Note(describe_stop(report.stop), b.Tone.FAINT, indent=2)


def _problems(report: RunReport) -> Iterator[b.Block]:
    """Why the program failed, the advice, and warnings."""
    for message in _failures(report):
        # A long URL is not broken, so that it stays a link.
        yield b.Note(message, b.Tone.PLAIN, b.Overflow.KEEP, hang=0, is_apart=True)
    if any(process.findings for process in report.processes):
        from ullage.verbs.text.remedies import remedy_parts

        yield from remedy_parts(report)
    for warning in report.warnings:
        yield b.Note(f"warning: {warning}", b.Tone.WARNING, is_apart=True)


def _fitting_gpus(report: RunReport) -> str:
    names = ", ".join(report.fits_on[:_NAMED_GPUS]) or "none of the catalogued GPUs"
    more = len(report.fits_on) - _NAMED_GPUS
    return f"The peak fits on: {names}{f' and {more} larger ones' if more > 0 else ''}"


def _worth_line(report: RunReport, findings: Sequence[Finding]) -> str:
    """The gain of the first finding, and the command that explains them all."""
    gain = findings[0].gain_bytes
    percent = 100 * gain / report.devices[0].totals.peak_allocated_bytes
    which = f"The largest of {len(findings)} findings" if len(findings) > 1 else "A finding"
    worth = f"{which} is worth up to {format_bytes(gain)} ({percent:.0f} % of the peak)"
    return f"{worth}: ullage explain {printable(str(report.processes[0].snapshot))}"


def _owners_line(device: DeviceReport) -> str:
    """The modules that own the most memory; empty if only the model as a whole is known."""
    shares = merge_numbered(device.ledger.modules)
    if len(shares) < 2:
        return ""
    owners = (
        f"{name_module(share.path)} {format_bytes(share.size_bytes)}"
        for share in shares[:_MAX_OWNERS]
    )
    return f"Largest owners: {', '.join(owners)}"


def _basis(report: RunReport) -> b.Block:
    if report.is_measured:
        return b.Note(_measured_line(report), b.Tone.PLAIN, b.Overflow.CUT)
    return b.Assumptions(tuple(dict.fromkeys(map(_assumption_text, list_assumptions(report)))))


def _measured_line(report: RunReport) -> str:
    measured = next(p.record.measured for p in report.processes if p.record.measured is not None)
    driver = f"driver {measured.driver}" if measured.driver else "the driver's version is not known"
    return f"Measured: {measured.mode}, {driver}, torch {report.torch}; --full prints the rest"


def _assumption_text(assumption: Assumption) -> str:
    size = assumed_bytes([assumption]) if assumption.low_bytes is not None else ""
    return f"{assumption.what} ({size})" if size else assumption.what


def _verdict(report: RunReport) -> b.Headline:
    if report.verdict is not Verdict.FITS or not report.devices:
        return _verdict_alone(report)
    line = _measured_verdict(report) if report.is_measured else _verdict_alone(report)
    growing = [device for device in report.devices if device.growth_text]
    if growing:
        first = min(growing, key=lambda device: device.full_after_steps or 0)
        return b.Headline((*line.words, b.Word("; "), b.Word(first.growth_text, b.Tone.DOUBTFUL)))
    return line


def _verdict_alone(report: RunReport) -> b.Headline:
    tone = _TONES[report.verdict]
    tightest = min(report.devices, key=lambda device: device.headroom_bytes, default=None)
    if report.verdict is Verdict.OUT_OF_MEMORY:
        return b.Headline.of(f"does not fit on {report.gpu.slug}", tone, f": {report.reason}")
    if report.verdict is Verdict.FAILED:
        return b.Headline.of("failed", tone, f": {report.reason}")
    if tightest is None:
        return b.Headline.of("fits: no device memory was used", tone)
    is_cut = report.stop is not None and report.stop.kind is StepKind.INFERENCE
    so_far = " so far" if is_cut else ""
    what = "context and libraries" if tightest.totals.outside else "context"
    context = f"±{format_bytes(tightest.headroom.context_margin_bytes)} {what}"
    if report.is_unlimited:
        used = format_bytes(max(device.peak_used_bytes for device in report.devices))
        return b.Headline.of(f"needs up to {used}", tone, f" of a GPU{so_far}, {context}")
    left = format_bytes(tightest.headroom.middle_bytes)
    has_several = any(device.totals.index for device in report.devices) or (
        len({device.pid for device in report.devices if device.rank is None}) > 1
    )
    which = f" on {_device_name(tightest, report.devices)}" if has_several else ""
    where = f" on {report.gpu.slug}, {left} left{which}, {context}"
    return b.Headline.of(f"fits{so_far}", tone, where)


def _measured_verdict(report: RunReport) -> b.Headline:
    """The first line of a program that ran through on a GPU."""
    fullest = max(report.devices, key=lambda device: device.totals.peak_reserved_bytes)
    totals = fullest.totals
    peaks = (
        f"peak {format_bytes(totals.peak_allocated_bytes)} allocated, "
        f"{format_bytes(totals.peak_reserved_bytes)} reserved"
    )
    which = f", on {_device_name(fullest, report.devices)}" if len(report.devices) > 1 else ""
    left = format_bytes(fullest.headroom_bytes)
    words = f": {peaks}{which}, {left} left"
    return b.Headline.of(f"measured on {totals.name}", b.Tone.GOOD, words)


def _other_margins(device: DeviceReport) -> str:
    """The other uncertainties of the headroom, with their sizes; empty if there are none."""
    headroom, parts = device.headroom, []
    if headroom.workspace_more_bytes or headroom.workspace_less_bytes:
        more = format_bytes(headroom.workspace_more_bytes)
        less = format_bytes(headroom.workspace_less_bytes)
        parts.append(f"workspaces +{more} -{less}")
    if headroom.completion_less_bytes:
        parts.append(f"other streams -{format_bytes(headroom.completion_less_bytes)}")
    if headroom.tuning_less_bytes:
        parts.append(f"a warm cache of Inductor's -{format_bytes(headroom.tuning_less_bytes)}")
    if headroom.address_less_bytes:
        parts.append(f"order of addresses -{format_bytes(headroom.address_less_bytes)}")
    if headroom.total_margin_bytes and not device.is_unlimited:
        parts.append(f"device's size ±{format_bytes(headroom.total_margin_bytes)}")
    return f"also uncertain: {', '.join(parts)}" if parts else ""


def _run_line(report: RunReport) -> str:
    torch = f"torch {report.torch}"
    name = report.devices[0].totals.name if report.devices else report.gpu.name
    return f"{name}, {torch}, {report.program.wall_s:.1f} s"


def _failures(report: RunReport) -> Iterator[str]:
    """The out-of-memory messages that the program got."""
    for process in report.processes:
        if process.oom is not None and process.oom.message:
            yield process.oom.message


def _device_parts(device: DeviceReport) -> Iterator[b.Block]:
    reserved = device.ledger.owners.allocated_bytes + device.ledger.cache_bytes
    more = device.totals.peak_reserved_bytes - reserved
    if more > 0 and not device.oom:
        yield b.Note(
            f"at another moment {format_bytes(more, 2)} more was reserved", b.Tone.FAINT, indent=2
        )
    if len(device.ledger.modules) > 1:
        yield b.Title("By module, at that moment")
        yield module_table(device.ledger.modules)
    yield b.Title("Peaks")
    yield peak_table(device)
    if device.steps or device.evaluations:
        yield b.Title("Peak per step (allocated)")
        yield step_table(device.steps, device.evaluations)


def _ledger_title(device: DeviceReport, devices: Sequence[DeviceReport]) -> str:
    when = "when it ran out of memory" if device.oom else "when the most was allocated"
    which = "" if len(devices) == 1 else f" of {_device_name(device, devices)}"
    return f"Memory{which} {when}"


def _ledger_table(device: DeviceReport, *, is_brief: bool = False) -> b.Table:
    """A line and a bar for each part of the device; the bar of free memory is cut off. The short
    table omits parts that are too small to change the last digit.
    """
    ledger, has_limit = device.ledger, not device.is_unlimited
    by_category = ledger.owners.by_category
    parts = [(look, by_category[category]) for category, look in CATEGORY_LOOKS.items()]
    parts += [(CACHE_LOOK, ledger.cache_bytes), (CONTEXT_LOOK, ledger.context_bytes)]
    parts += [(NON_TORCH_LOOK, ledger.non_torch_bytes), (OTHERS_LOOK, ledger.others_bytes)]
    scale = max(size for _, size in parts)
    if has_limit:
        parts += [(FREE_LOOK, ledger.free_bytes)]
    least = ledger.total_bytes // _SMALL_SHARE if is_brief else 0
    rows: b.Rows = [
        [look.label, format_bytes(size, 2), b.Bar(size, scale, look.color)]
        for look, size in parts
        if size > least
    ]
    whole = ledger.total_bytes if has_limit else ledger.total_bytes - ledger.free_bytes
    rows.append(["total" if device.budget_bytes is None else "budget", format_bytes(whole, 2)])
    return b.Table((b.LEFT, b.RIGHT, b.LEFT), rows)


def _all_devices(
    devices: Sequence[DeviceReport], covers: Mapping[int, Sequence[int]]
) -> Iterator[b.Block]:
    """A line for each device; ranks with equal figures share a line."""
    ranks_of: dict[tuple[str, ...], list[int]] = {}
    rows: b.Rows = []
    for device in devices:
        cells = (
            format_bytes(device.totals.peak_allocated_bytes, 2),
            format_bytes(device.totals.peak_reserved_bytes, 2),
            "" if device.is_unlimited else format_bytes(device.headroom_bytes, 2),
        )
        if device.rank is None:
            rows.append([_device_name(device, devices), *cells])
        else:
            ranks_of.setdefault(cells, []).extend(covers.get(device.rank, (device.rank,)))
    rows += [[name_ranks(sorted(set(ranks))), *sizes] for sizes, ranks in ranks_of.items()]
    yield b.Title("All devices")
    yield b.Table(
        (b.LEFT, b.RIGHT, b.RIGHT, b.RIGHT), rows, ("device", "allocated", "reserved", "left")
    )


def _device_name(device: DeviceReport, devices: Sequence[DeviceReport]) -> str:
    """A unique name for a device; it includes the process if several processes used devices of the
    same name.
    """
    name = _plain_name(device)
    is_shared = sum(_plain_name(device) == name for device in devices) > 1
    return f"process {device.pid}, {name}" if is_shared else name


def _plain_name(device: DeviceReport) -> str:
    name = f"device {device.totals.index}"
    return name if device.rank is None else f"rank {device.rank}, {name}"
