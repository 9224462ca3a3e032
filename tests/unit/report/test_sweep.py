"""What a sweep looks like, to the character, at 80 columns; its document; its plot."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ullage.answers.plot import check_plot, write_plots
from ullage.answers.text import render
from ullage.explain.compare.sweep import SweepReport
from ullage.facts.gpus.catalog import Gpu
from ullage.ground.errors import SpecError
from ullage.ground.protocol.plain import document_of
from ullage.verbs.run.sweep_text import sweep_blocks, sweep_plot

SweepOf = Callable[..., SweepReport]
HERE = Path(__file__).parent
OOM = {"kind": "exception", "exception": "torch.OutOfMemoryError", "message": "CUDA out of memory.",
       "where": None, "code": 1}  # fmt: skip


@pytest.fixture(scope="session")
def reports(sweep_of: SweepOf, small_gpu: Gpu) -> dict[str, SweepReport]:
    gpus = [
        replace(small_gpu, slug=slug, total_bytes=total, total_low_bytes=total)
        for slug, total in (("large", 4000), ("middle", 1500), ("small", 1000))
    ]
    batches = {"batch": ["1", "2", "4", "8"]}
    grid = {"batch": ["1", "2"], "seq": ["10", "20"], "kind": ["a", "b"]}
    return {
        "batch": sweep_of(batches, lambda x: int(100 + 99 * x) if x < 8 else OOM),
        "unlimited": sweep_of(batches, lambda x: int(100 + 99 * x), is_unlimited=True),
        "gpus": sweep_of({}, lambda: 1100, gpus=gpus[:2]),
        "grid": sweep_of(grid, lambda batch, seq, _kind: int(5 + batch * seq), gpus=gpus[1:]),
        "nothing": sweep_of(batches, lambda _x: OOM),
        "failed": sweep_of({"batch": ["1", "2"]}, lambda x: 9 if x < 2 else OOM | {
            "exception": "builtins.ValueError", "message": "no"}),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["batch", "unlimited", "gpus", "grid", "nothing", "failed"])
def test_the_text_is_as_it_was_looked_at(reports: dict[str, SweepReport], name: str) -> None:
    text = render(sweep_blocks(reports[name]))
    assert max(map(len, text.splitlines())) <= 80
    path = HERE / f"sweep-{name}.txt"
    assert text == path.read_text(encoding="utf-8")


def test_a_narrow_terminal_has_the_table_without_bars(reports: dict[str, SweepReport]) -> None:
    text = render(sweep_blocks(reports["batch"]), width=48)
    assert "█" not in text and "199 B" in text


def test_the_document_has_each_run_and_what_they_say(reports: dict[str, SweepReport]) -> None:
    document = document_of(reports["grid"])
    assert json.loads(json.dumps(document)) == document
    assert document["schema"] == "ullage.sweep/1"
    assert document["variables"] == {"batch": ["1", "2"], "seq": ["10", "20"], "kind": ["a", "b"]}
    assert len(document["runs"]) == 16
    assert {run["run"]["schema"] for run in document["runs"]} == {"ullage.run/1"}
    (line,) = [
        line for line in document["lines"]
        if (line["variable"], line["gpu"], line["held"]) == ("batch*seq", "small", {"kind": "a"})
    ]  # fmt: skip
    assert (line["fixed_bytes"], line["bytes_per_unit"], line["num_runs"]) == (5, 1, 4)
    assert document["smallest_gpu"] == "small"
    assert {"batch": "2", "seq": "20", "kind": "a"} in document["largest"]["small"]


@pytest.mark.parametrize("name", ["batch", "unlimited", "gpus", "grid", "nothing"])
@pytest.mark.parametrize("suffix", [".svg", ".png", ".pdf"])
def test_every_sweep_can_be_drawn(
    reports: dict[str, SweepReport], tmp_path: Path, name: str, suffix: str
) -> None:
    path = tmp_path / f"plot{suffix}"
    check_plot(path)
    write_plots([sweep_plot(reports[name])], "train.py", path)
    begin = {".svg": b"<?xml", ".png": b"\x89PNG", ".pdf": b"%PDF"}[suffix]
    assert path.read_bytes().startswith(begin)


def test_a_plot_says_in_words_what_it_shows(
    reports: dict[str, SweepReport], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib").rcParams["svg.fonttype"] = "none"
    write_plots([sweep_plot(reports["batch"])], "train.py", tmp_path / "plot.svg")
    text = (tmp_path / "plot.svg").read_text()
    for words in ("whole device", "allocated", "small (a cross does not fit)", ">batch<", ">GiB<"):
        assert words in text, words


def test_a_kind_of_picture_that_is_not_known_is_refused() -> None:
    with pytest.raises(SpecError, match=r"'plot.gif' has no ending .* \.svg, \.png, \.pdf"):
        check_plot(Path("plot.gif"))
