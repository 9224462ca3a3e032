"""The view of a snapshot's requests under other allocator settings."""

from __future__ import annotations

from collections.abc import Iterator

from ullage.answers import block_kinds as b
from ullage.explain.whatif.outcomes import Check, OnGpu, Outcome, Tried, WhatIfReport
from ullage.explain.whatif.settings import MEANINGS, Family, Setting
from ullage.ground.units import format_bytes

_SETTING = b.Column(overflow=b.Overflow.FOLD)
_NUMBER = b.Column(is_right=True, overflow=b.Overflow.KEEP)


def what_if_line(report: WhatIfReport) -> str:
    """The result, in one line."""
    best, before = report.recommended, report.baseline.outcome
    if report.contradictions:
        return "nothing is recommended: the snapshot contradicts itself"
    if report.is_too_small:
        return (
            f"no setting can help on {report.gpu}: {format_bytes(report.lower_bound_bytes, 2)} are "
            f"live at once, and there are {format_bytes(report.free_bytes or 0, 2)}"
        )
    if best is None or best.outcome is None:
        return "no setting that was tried is worth a change"
    reserved = format_bytes(best.outcome.peak_reserved_bytes, 2)
    if before is None:
        return f"{_shown(best.setting)} reserves {reserved}"
    if not before.fits:
        return f"{_shown(best.setting)} has memory for it all ({reserved} reserved)"
    saved = format_bytes(before.peak_reserved_bytes - best.outcome.peak_reserved_bytes, 2)
    return f"{_shown(best.setting)} reserves {saved} less ({reserved})"


def what_if_blocks(report: WhatIfReport) -> Iterator[b.Block]:
    """The bytes that each setting would reserve, and how to use the one that is recommended."""
    yield b.Headline.of(what_if_line(report), b.Tone.GOOD if report.recommended else b.Tone.STRONG)
    yield _note(_how(report))
    yield _note(_check_text(report.check), b.Tone.PLAIN if report.check.is_exact
               else b.Tone.WARNING)  # fmt: skip
    yield b.Title("Reserved at the peak")
    yield _settings_table(report)
    if report.on_gpus:
        yield b.Title("GPUs on which the settings decide")
        yield _gpus_table(report.on_gpus)
    yield from (_note(remark, b.Tone.WARNING) for remark in _remarks(report))
    for contradiction in report.contradictions[:1]:
        yield _note(f"the snapshot contradicts itself: {contradiction}", b.Tone.MORE)
    yield from (_note(f"note: {note}") for note in report.notes)
    best = report.recommended
    if best is not None:
        yield b.Title("To use it")
        setting = best.setting
        change = "leave PYTORCH_ALLOC_CONF and PYTORCH_CUDA_ALLOC_CONF unset"
        if setting.text:
            change = f"PYTORCH_ALLOC_CONF={setting.text} (torch 2.9 and earlier: "
            change += "PYTORCH_CUDA_ALLOC_CONF)"
        if setting.text and setting.fraction is not None:
            call = f"torch.cuda.set_per_process_memory_fraction({setting.fraction:g})"
            change += f", and call {call} before the first allocation"
        yield _note(change)
    yield b.Title("What the settings do")
    for family in report.families:
        yield _note(f"{family.value}: {MEANINGS[family]}", b.Tone.FAINT)


def _how(report: WhatIfReport) -> str:
    where = "a GPU that never runs out"
    if report.free_bytes is not None:
        free = format_bytes(report.free_bytes, 2)
        where = f"{report.gpu} ({free} beside the driver's context)"
    return (
        f"{report.num_requests:,} allocations of device {report.device}, made again by the "
        f"rules of torch {report.torch}'s allocator on {where}"
    )


def _check_text(check: Check) -> str:
    replayed = format_bytes(check.replayed_reserved_bytes, 2)
    if check.is_exact:
        return (
            f"Check: under the recorded settings {replayed} reserved at the peak and "
            f"{check.num_replayed_segments} segments at the end, to the byte what was recorded"
        )
    recorded = format_bytes(check.recorded_reserved_bytes, 2)
    return (
        f"Check: under the recorded settings {replayed} reserved at the peak, recorded {recorded}; "
        f"{check.num_replayed_segments} segments at the end, recorded "
        f"{check.num_recorded_segments}. Why they may differ: {'; '.join(check.reasons)}"
    )


def _settings_table(report: WhatIfReport) -> b.Table:
    rows: b.Rows = []
    before = report.baseline.outcome
    if not report.begins_as_recorded:
        checked = format_bytes(report.check.replayed_reserved_bytes, 2)
        rows.append([f"{_shown(report.baseline.setting)} (as recorded)", checked, "", ""])
    known = [tried for tried in report.tried[1:] if tried.outcome]
    known.sort(key=lambda tried: tried.outcome.peak_reserved_bytes if tried.outcome else 0)
    for tried in (report.baseline, *known):
        outcome = tried.outcome
        if outcome is None:
            rows.append([f"{_shown(tried.setting)}: {tried.refusal}"])
            continue
        changed = outcome.peak_reserved_bytes - (before or outcome).peak_reserved_bytes
        rows.append(
            b.Row(
                [
                    _name_cell(tried, outcome, _origin(report)),
                    format_bytes(outcome.peak_reserved_bytes, 2),
                    ""
                    if tried is report.baseline
                    else f"{'+' * (changed > 0)}{format_bytes(changed, 2)}",
                    f"{100 * outcome.unused_frac:.1f} %",
                ],
                b.Tone.GOOD if tried is report.recommended else b.Tone.PLAIN,
            )
        )
    for label, size in (
        (f"best packing found ({report.packing.method})", report.packing.size_bytes),
        ("lower bound: live at once", report.lower_bound_bytes),
    ):
        rows.append(b.Row([label, format_bytes(size, 2), "", ""], b.Tone.FAINT))
    return b.Table((_SETTING, *[_NUMBER] * 3), rows, ("setting", "reserved", "change", "unused"))


def _origin(report: WhatIfReport) -> str:
    """The origin of the comparison: how the recorded ones were replayed."""
    if report.begins_as_recorded:
        return "as recorded"
    if not report.is_whole:
        return "begun as those below"
    return f"on {report.gpu}" if report.gpu is not None else "memory without end"


def _name_cell(tried: Tried, outcome: Outcome, origin: str) -> tuple[b.Word, ...]:
    """The setting, a line for each of its parts, and what to know of it below."""
    words = [b.Word(_shown(tried.setting).replace(",", ",\n    "))]
    if tried.setting.family is Family.RECORDED:
        words.append(b.Word(f" ({origin})"))
    if not outcome.fits:
        words.append(b.Word(f"\n    {_failure(outcome)}", b.Tone.MORE))
    if outcome.num_retries:
        words.append(b.Word(f"\n    releases its cache {outcome.num_retries}x", b.Tone.WARNING))
    if tried.conflicts:
        words.append(b.Word("\n    not for this program", b.Tone.WARNING))
    return tuple(words)


def _remarks(report: WhatIfReport) -> Iterator[str]:
    """The settings that this program or this torch cannot use, with reasons."""
    reasons: dict[str, list[str]] = {}
    for tried in report.tried:
        for reason in tried.conflicts:
            reasons.setdefault(f"not for this program: {reason}", []).append(_shown(tried.setting))
        if tried.outcome is None and tried is not report.baseline:
            reasons.setdefault(f"refused by torch {report.torch}: {tried.refusal}", []).append(
                _shown(tried.setting)
            )
    yield from (f"{', '.join(names)}: {reason}" for reason, names in reasons.items())


def _failure(outcome: Outcome) -> str:
    if outcome.failed_event is None:
        return f"no memory for {outcome.num_failed_attempts} that failed when recorded"
    if outcome.failed_event == -1:
        return "no memory before the first event"
    return f"no memory at event {outcome.failed_event:,}"


def _gpus_table(on_gpus: tuple[OnGpu, ...]) -> b.Table:
    rows: b.Rows = []
    for on_gpu in on_gpus:
        outcome = on_gpu.tried.outcome
        answer = on_gpu.tried.refusal
        if outcome is not None:
            answer = "fits" if outcome.fits else _failure(outcome)
        tone = b.Tone.LESS if outcome is not None and outcome.fits else b.Tone.MORE
        rows.append(
            [
                on_gpu.gpu,
                format_bytes(on_gpu.total_bytes, 2),
                _shown(on_gpu.tried.setting),
                b.Word(answer, tone),
            ]
        )
    return b.Table((b.LEFT, b.RIGHT, b.LEFT, b.LEFT), rows)


def _shown(setting: Setting) -> str:
    text = setting.text or "no setting"
    return text if setting.fraction is None else f"{text}, process fraction {setting.fraction:g}"


def _note(text: str, tone: b.Tone = b.Tone.PLAIN) -> b.Note:
    return b.Note(text, tone, indent=2, hang=4, margin=2)
