"""An explained snapshot as one HTML file.

render_page(view)          the text of the file
"""

from __future__ import annotations

from pathlib import Path

from ullage.errors import SnapshotError
from ullage.report.explain import ExplainView, explain_line
from ullage.report.explain_parts import describe_file
from ullage.report.html import Finding, SnapshotPage, render_snapshot
from ullage.units import format_bytes

_NOTHING = "the file tells of no device memory; there is nothing to draw"


def render_page(view: ExplainView) -> str:
    """The page of the device with the highest peak.

    Raises:
        SnapshotError: the file tells of no device memory.
    """
    report = view.report
    if not report.devices:
        raise SnapshotError(f"{view.path!r}: {_NOTHING}")
    device = max(report.devices, key=lambda one: one.peak_allocated_bytes)
    findings = tuple(
        Finding(
            code=finding.rule.code, title=finding.what, bytes=finding.gain_bytes,
            text="\n".join((*finding.evidence, f"do: {finding.change}")),
        )
        for finding in view.findings
        if finding.device == device.index
    )  # fmt: skip
    return render_snapshot(
        SnapshotPage(
            title=Path(view.path).name,
            snapshot=report.snapshot,
            replay=device.replay,
            device=device.index,
            category=device.owners.category,
            is_guess=not device.owners.is_known,
            findings=findings,
            summary=(
                ("verdict", explain_line(view)),
                ("allocated", format_bytes(device.peak_allocated_bytes, 2)),
                ("reserved", format_bytes(device.peak_reserved_bytes, 2)),
            ),
            notes=(*describe_file(report), *filter(None, (report.record_remark,))),
        )
    )
