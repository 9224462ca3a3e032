"""The report of a snapshot as one HTML file."""

from __future__ import annotations

from pathlib import Path

from ullage.answers.html import render_page
from ullage.explain.reconcile import reconcile
from ullage.explain.snapshot import DeviceSnapshot
from ullage.ground.errors import SnapshotError
from ullage.ground.units import format_bytes
from ullage.verbs.explain.document import explain_document
from ullage.verbs.explain.text import explain_blocks, explain_line, trial_line
from ullage.verbs.explain.text_parts import describe_file
from ullage.verbs.page.payload import Finding, SnapshotPage, map_of
from ullage.verbs.views.module_names import name_module
from ullage.verbs.views.views import ExplainView

_NOTHING = "the file tells of no device memory; there is nothing to draw"


def render_explain_page(view: ExplainView) -> str:
    """Renders the page of all devices; it shows the one with the highest peak first.

    Raises:
        SnapshotError: the file has no device memory.
    """
    blocks = [*explain_blocks(view), map_of(*make_pages(view))]
    return render_page(Path(view.path).name, blocks, explain_document(view))


def make_pages(view: ExplainView) -> list[SnapshotPage]:
    """The contents of the page for each device, the highest peak first.

    Raises:
        SnapshotError: the file has no device memory.
    """
    devices = sorted(view.report.devices, key=lambda device: -device.peak_allocated_bytes)
    if not devices:
        raise SnapshotError(f"{view.path!r}: {_NOTHING}")
    return [make_page(view, device) for device in devices]


def _capacity(device: DeviceSnapshot) -> tuple[int, str] | None:
    """The bytes that the allocator can reserve of the device beside the context and libraries."""
    lines = reconcile(device.fragmentation, device.totals)
    if device.totals is None or lines.free_bytes is None:
        return None
    room_bytes = lines.reserved_bytes + lines.free_bytes
    return room_bytes, f"{device.totals.name} is full: {format_bytes(room_bytes)} for PyTorch"


def make_page(view: ExplainView, device: DeviceSnapshot) -> SnapshotPage:
    """The contents of the page for one device."""
    report = view.report
    findings = tuple(
        Finding(
            code=finding.rule.code, title=finding.what, bytes=finding.gain_bytes,
            text="\n\n".join((
                "\n".join(finding.evidence), f"do: {finding.change}",
                *(() if finding.trial is None else (trial_line(finding.trial),)),
            )),
        )
        for finding in view.findings
        if finding.device == device.index
    )  # fmt: skip
    name = Path(view.path).name
    modules = device.owners.modules
    return SnapshotPage(
        title=name if len(report.devices) == 1 else f"{name}, device {device.index}",
        snapshot=report.snapshot,
        replay=device.replay,
        levels=device.levels,
        device=device.index,
        category=device.owners.category,
        is_guess=not device.owners.is_known,
        module=None if modules is None else modules.index + 1,  # name 0 is "no module"
        module_names=() if modules is None else ("", *map(name_module, modules.names)),
        course=device.course,
        capacity=_capacity(device),
        findings=findings,
        summary=(
            ("verdict", explain_line(view)),
            ("allocated", format_bytes(device.peak_allocated_bytes, 2)),
            ("reserved", format_bytes(device.peak_reserved_bytes, 2)),
        ),
        notes=(*describe_file(report), *filter(None, (report.record_remark,))),
    )
