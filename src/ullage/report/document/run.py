"""The run document, schema "ullage.run/1", which `--json` prints, `-o` writes and pages embed.

Sizes are bytes. Fields may be added; none changes its meaning without a new schema number.

    json.dumps(run_document(report), indent=2)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ullage.explain.basis import Basis
from ullage.explain.device import DeviceReport
from ullage.explain.moments.ledger import Ledger, Ownership
from ullage.explain.moments.steps import EvaluationPeak, Peak, StepPeak
from ullage.explain.owners.modules import ModuleShare
from ullage.explain.run import Process, RunReport
from ullage.explain.stops import describe_stop
from ullage.report.document.fields import Document
from ullage.report.document.findings import finding_document
from ullage.report.document.pressure import pressure_document
from ullage.report.document.time import time_document
from ullage.techniques.applying.outcome import Outcome
from ullage.trace.model import Stop

RUN_SCHEMA = "ullage.run/1"


def run_document(report: RunReport) -> Document:
    """The run document of a report."""
    first = report.processes[0] if report.processes else None
    processes = [_process(process) for process in report.processes]
    return {
        "schema": RUN_SCHEMA,
        "verdict": report.verdict.value,
        "reason": report.reason,
        "program": list(report.program.argv),
        "exit_code": report.program.exit_code,
        "stopped": _stop(report.stop),
        "torch": report.torch,
        "ullage": report.ullage,
        "wall_s": round(report.program.wall_s, 3),
        "warnings": list(report.warnings),
        "basis": {
            "allocator": _basis(report.allocator_basis),
            "device": _basis(report.device_basis),
        },
        "host_peak_bytes": report.host.peak_bytes,
        "host_needed_bytes": report.host.needed_bytes,
        "host_needed_high_bytes": report.host.needed_high_bytes,
        "pinned_low_bytes": report.host.pinned_low_bytes,
        "pinned_peak_bytes": report.host.pinned_peak_bytes,
        "pinned_asked_bytes": report.host.pinned_asked_bytes,
        "processes": processes,
        "devices": [_device(device) for device in report.devices],
        "ranks": [{"rank": rank, "stands_for": list(like)} for rank, like in report.covers],
        "fits_on": list(report.fits_on),
        "exception": _exception(report),
        "plan": _plan(report.program.plan),
        "time": time_document(
            report.time, report.cost, report.slowest.record.rank if report.slowest else None
        ),
        "oom": processes[0]["oom"] if processes else None,
        "snapshot": None if first is None else first.snapshot,
    }


def _stop(stop: Stop | None) -> Document | None:
    """How `--steps` ended the program."""
    if stop is None:
        return None
    return {"after": describe_stop(stop), "num_steps": stop.count, "kind": stop.kind.value}


def _plan(outcome: Outcome | None) -> Document | None:
    if outcome is None or outcome.plan is None:
        return None
    return {
        "is_applied": outcome.is_applied,
        "reason": outcome.reason,
        "summary": outcome.plan.summary,
        "document": outcome.plan.document,
    }


def _process(process: Process) -> Document:
    oom, pressure = process.oom, pressure_document(process.record.measured)
    findings = [finding_document(finding) for finding in process.findings]
    return {
        "pid": process.record.pid,
        "rank": process.record.rank,
        "snapshot": process.snapshot,
        "oom": None
        if oom is None
        else {
            "requested_bytes": oom.requested_bytes,
            "message": oom.message or "",
            "where": oom.where or "",
            "findings": findings,
        },
        "findings": findings if oom is None else [],
        # A prediction has no such field: nothing of it was measured.
        **({} if pressure is None else {"pressure": pressure}),
    }


def _device(device: DeviceReport) -> Document:
    totals, budget_bytes = device.totals, device.budget_bytes
    return {
        "index": totals.index,
        "rank": device.rank,
        "gpu": device.gpu.slug,
        "name": totals.name,
        "is_unlimited": device.is_unlimited,
        "total_bytes": device.totals.total_bytes if budget_bytes else device.gpu.total_bytes,
        "budget_bytes": budget_bytes,
        "context_bytes": totals.context_bytes,
        "context_low_bytes": device.gpu.context_low_bytes,
        "context_high_bytes": device.gpu.context_high_bytes,
        "non_torch_bytes": totals.non_torch_bytes,
        "other_processes_bytes": totals.others_bytes,
        "peak_requested_bytes": totals.peak_requested_bytes,
        "peak_allocated_bytes": totals.peak_allocated_bytes,
        "peak_reserved_bytes": totals.peak_reserved_bytes,
        "peak_allocated_low_bytes": device.reserved.allocated_low_bytes,
        "peak_allocated_high_bytes": device.reserved.allocated_high_bytes,
        "peak_reserved_low_bytes": device.reserved.low_bytes,
        "peak_reserved_high_bytes": device.reserved.high_bytes,
        "num_held_blocks": device.reserved.completion.num_held,
        "held_at_peak_bytes": device.reserved.completion.held_bytes,
        "num_timing_blocks": device.reserved.tuning.num_blocks,
        "peak_used_bytes": device.peak_used_bytes,
        "headroom_bytes": device.headroom_bytes,
        "headroom_low_bytes": device.headroom.low_bytes,
        "headroom_high_bytes": device.headroom.high_bytes,
        "growth_bytes_per_step": None if device.growth is None else round(device.growth),
        "full_after_steps": device.full_after_steps,
        "num_allocs": totals.num_allocs,
        "num_segments": totals.num_segments,
        "num_ooms": totals.num_ooms,
        "num_alloc_retries": totals.num_alloc_retries,
        "at_peak": _owners(device.at_peak),
        "ledger": {**_ledger(device.ledger), "modules": _modules(device.modules)},
        "modules": _modules(device.modules_at_peak),
        "steps": [_step(step) for step in device.steps],
        "evaluations": [_evaluation(evaluation) for evaluation in device.evaluations],
    }


def _owners(ownership: Ownership) -> Document:
    return {category.value: bytes_ for category, bytes_ in ownership.by_category.items()}


def _modules(shares: Sequence[ModuleShare]) -> list[Document]:
    return [{"path": share.path, "bytes": share.size_bytes} for share in shares]


def _evaluation(evaluation_peak: EvaluationPeak) -> Document:
    return {
        "before_step": evaluation_peak.before_step,
        "num_forwards": evaluation_peak.num_forwards,
        **_peak(evaluation_peak.peak),
    }


def _ledger(ledger: Ledger) -> Document:
    return {
        "position": ledger.owners.position,
        "owners": _owners(ledger.owners),
        "cache_bytes": ledger.cache_bytes,
        "context_bytes": ledger.context_bytes,
        "non_torch_bytes": ledger.non_torch_bytes,
        "other_processes_bytes": ledger.others_bytes,
        "free_bytes": ledger.free_bytes,
        "total_bytes": ledger.total_bytes,
    }


def _step(step: StepPeak) -> Document:
    return {
        "index": step.index,
        **_peak(step.peak),
        "is_complete": step.is_complete,
        "phases": _phases(step.phases),
    }


def _phases(phases: Mapping[str, Peak]) -> Document:
    return {name: _peak(peak) for name, peak in phases.items()}


def _peak(peak: Peak) -> Document:
    return {
        "peak_allocated_bytes": peak.allocated_bytes,
        "peak_reserved_bytes": peak.reserved_bytes,
    }


def _basis(basis: Basis) -> Document:
    return {
        "kind": basis.kind.value,
        "assumptions": [
            {
                "what": assumption.what,
                "where": assumption.where,
                "count": assumption.count,
                "bytes": assumption.size_bytes,
                "low_bytes": assumption.low_bytes,
                "high_bytes": assumption.high_bytes,
            }
            for assumption in basis.assumptions
        ],
    }


def _exception(report: RunReport) -> Document | None:
    ended = report.program_exit
    if ended is None or ended.exception is None:
        return None
    return {"type": ended.exception, "message": ended.message or "", "where": ended.where or ""}
