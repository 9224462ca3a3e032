"""What the report looks like, to the character, at 80 columns."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from ullage.answers.block_kinds import LEFT, RIGHT, Detail, Note, Table
from ullage.answers.html import render_page
from ullage.answers.text import print_blocks, render
from ullage.explain.program import Program
from ullage.explain.rules.registry import RULES
from ullage.explain.rules.rule import Finding
from ullage.explain.run import RunReport, explain_run
from ullage.facts.gpus.catalog import Gpu
from ullage.log.model import Record
from ullage.verbs.run.text import run_blocks

Make = Callable[..., Record]
HERE = Path(__file__).parent
TRAINING = (
    "+200 =parameter +3 F +300 +50 -50 f B +100 =gradient +40 w -40 -300 b O +150 =optimizer_state "
    "o S"
    " -3 -100 " + "+3 F +300 +50 -50 f B +100 =gradient -300 b O o S -3 -100 " * 3
)
READS = [
    ["read", f"host read {n}, answered as zeros", f"train.py:{n} in main", n, None, 4 * n, None]
    for n in range(1, 11)
]
SIZES = ["workspace", "cuDNN convolution forward workspace", "", 7, 10, 20, 60]
MESSAGE = (
    "CUDA out of memory. Tried to allocate 300 bytes. GPU 0 has a total capacity of 1000 bytes. "
    "See "
    "https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc"
)
# Parameters, states, an input, activations and gradients, in the backward of a later step.
PEAK = 200 + 150 + 3 + 300 + 100
OOM = {"kind": "exception", "exception": "torch.OutOfMemoryError", "message": MESSAGE,
       "where": "train.py:3 in main", "code": 1}  # fmt: skip


def explain(
    record: Record, program: Program, gpu: Gpu, *, is_unlimited: bool = False, exit_code: int = 0
) -> RunReport:
    return explain_run(
        [(record, "ullage-train.pickle")],
        program=replace(program, exit_code=exit_code),
        torch="2.15.0+cu132",
        gpu=gpu,
        is_unlimited=is_unlimited,
        catalogued=lambda: (gpu,),
    )


@pytest.fixture
def reports(make_record: Make, program: Program, small_gpu: Gpu) -> dict[str, RunReport]:
    host = {"host_needed_bytes": 5000, "pinned_peak_bytes": 64}
    training = make_record(TRAINING, basis=[*READS, SIZES], **host)
    failed = make_record("+700 =parameter S F +30 !300", exit=OOM)
    return {
        "fits": explain(training, program, small_gpu),
        "unlimited": explain(training, program, small_gpu, is_unlimited=True),
        "out_of_memory": explain(failed, program, small_gpu, exit_code=1),
    }


@pytest.mark.parametrize("name", ["fits", "unlimited", "out_of_memory"])
def test_the_report_is_the_one_on_file(reports: dict[str, RunReport], name: str) -> None:
    text = render(run_blocks(reports[name]), full=True)
    assert text == (HERE / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["fits", "out_of_memory", "unlimited"])
def test_the_short_report_is_the_one_on_file(name: str, reports: dict[str, RunReport]) -> None:
    assert render(run_blocks(reports[name])) == (HERE / f"{name}.brief.txt").read_text(
        encoding="utf-8"
    )


def test_the_short_report_has_at_most_fourteen_lines(reports: dict[str, RunReport]) -> None:
    assert len(render(run_blocks(reports["fits"])).splitlines()) <= 14


def test_the_short_report_ends_with_what_the_largest_finding_is_worth(
    reports: dict[str, RunReport],
) -> None:
    report = reports["fits"]
    assert report.devices[0].totals.peak_allocated_bytes == PEAK
    findings = [
        Finding(RULES["UL125"], 0, "what", (), gain_bytes=gain, change="", is_guess=False)
        for gain in (PEAK // 4, PEAK // 8)
    ]
    line = render(run_blocks(report, findings), 80).splitlines()[-1]
    assert line == (
        "The largest of 2 findings is worth up to 188 B (25 % of the peak): "
        "ullage explain ullage-train.pickle"
    )


def test_the_table_is_of_the_device_that_ran_out_of_memory(reports: dict[str, RunReport]) -> None:
    (fuller,), (failed,) = reports["fits"].devices, reports["out_of_memory"].devices
    totals = replace(fuller.totals, index=1, peak_reserved_bytes=2 * failed.peak_used_bytes)
    fuller = replace(fuller, totals=totals)
    assert fuller.peak_used_bytes > failed.peak_used_bytes and fuller.oom is None
    report = replace(reports["out_of_memory"], devices=(fuller, failed))
    assert "Memory of device 0 when it ran out of memory" in render(run_blocks(report))


def test_no_line_is_wider_than_80_columns_but_an_address(reports: dict[str, RunReport]) -> None:
    for report in reports.values():
        for line in render(run_blocks(report), full=True).splitlines():
            assert len(line) <= 80 or "https://" in line


def test_a_long_address_stays_in_one_piece(reports: dict[str, RunReport]) -> None:
    assert MESSAGE.rpartition(" ")[2] in render(run_blocks(reports["out_of_memory"]), full=True)


def test_a_long_list_of_the_same_assumption_is_one_row(
    make_record: Make, program: Program, small_gpu: Gpu
) -> None:
    reads = [["read", "host read, answered as zeros", *read[2:]] for read in READS]
    report = explain(make_record(TRAINING, basis=reads), program, small_gpu)
    text = render(run_blocks(report), full=True)
    (row,) = [line for line in text.splitlines() if "host read" in line]
    assert row.split()[-5:] == ["10", "places", "55", "220", "B"]


def test_no_line_ends_in_blanks(reports: dict[str, RunReport]) -> None:
    for line in printed(reports["fits"], color_system="256").splitlines():
        assert line == line.rstrip()


def printed(report: RunReport, **options: object) -> str:
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=True, **options)  # type: ignore[arg-type]
    print_blocks(run_blocks(report), console, full=True)
    return file.getvalue()


def test_colour_on_a_terminal_and_none_with_no_color(
    reports: dict[str, RunReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[38" in printed(reports["fits"])
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[38" not in printed(reports["fits"])


def test_a_terminal_without_unicode_gets_ascii_bars(reports: dict[str, RunReport]) -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii", errors="strict")
    print_blocks(run_blocks(reports["fits"]), Console(file=file, width=80), full=True)
    file.flush()
    assert b"####" in raw.getvalue()


def test_wrapped_lines_begin_below_the_first() -> None:
    assert render([Note("one two three", indent=2)], 9) == "  one two\n  three\n"
    assert render([Note("one two three", indent=2, hang=4)], 9) == "  one two\n    three\n"


def test_details_are_in_the_full_text_and_on_pages_alone() -> None:
    def blocks() -> list[Detail | Note]:
        inner = Detail((Note("inner"),), (Note("never"),))
        return [Note("both"), Detail((Note("detail"), inner), (Note("brief"),))]

    assert render(blocks()).split() == ["both", "brief"]
    assert render(blocks(), full=True).split() == ["both", "detail", "inner"]
    page = render_page("x", blocks())
    assert ">detail<" in page and ">inner<" in page
    assert ">brief<" not in page and ">never<" not in page


def test_a_short_row_of_a_page_has_all_its_cells() -> None:
    page = render_page("x", [Table((LEFT, RIGHT, LEFT), [["total", "1"]])])
    assert '<tr><td>total</td><td class="number">1</td><td></td></tr>' in page
