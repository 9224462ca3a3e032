"""The log of an estimate: what reads the log of a run reads it, and finds what the totals say."""

from __future__ import annotations

import csv
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.accuracy.estimate.compare import make_recipe
from tests.rows import each

import ullage
from ullage.explain.basis import BasisKind, allocator_basis
from ullage.explain.compare.causes import CauseKind
from ullage.explain.owners.ownership import code_of
from ullage.explain.rules.registry import find_findings
from ullage.explain.snapshot import SnapshotReport, explain_snapshot
from ullage.facts.families.config import Config
from ullage.facts.families.find import find_config
from ullage.facts.gpus.catalog import find_gpu
from ullage.ground.errors import SpecError
from ullage.log.category import Category
from ullage.log.record_schema import PRECISIONS
from ullage.players.eager.training.estimate import OUTSIDE, TrainingEstimate, estimate_training
from ullage.players.eager.training.layout import Layout
from ullage.players.eager.training.log import write_log
from ullage.players.eager.training.recipe import Lora, Recipe
from ullage.search.costs.blocks import Block
from ullage.search.costs.profile import read_profile

HERE = Path(__file__).parent
VECTORS: dict[str, dict[str, Any]] = json.loads(
    (HERE / "phantom_vectors.json").read_text(encoding="utf-8")
)
# case, moment of the peak, allocated, reserved, findings
TABLE = HERE.parents[1] / "golden" / "estimates.csv"
CHANGED: dict[str, Any] = {"lora": 8, "checkpointing": "full", "zeroes_late": True}
RECIPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "checkpointed": {"checkpointing": "full"},
    "autocast": {"precision": "amp-bf16"},
    "accumulated": {"accumulation": 3},
    "zeroed late": {"zeroes_late": True},
    "adapted": {"lora": Lora(rank=8)},
    "sharded": {"layout": Layout(data=8, sharding="fsdp")},
}


def estimate(model: str = "llama-3.2-1b", **changes: Any) -> TrainingEstimate:
    recipe = Recipe(**{"batch": 2, "length": 512, **changes})
    return estimate_training(find_config(model).config, recipe, find_gpu("h100-80gb"))


@cache
def explained(name: str) -> tuple[TrainingEstimate, SnapshotReport]:
    found = estimate(**RECIPES[name])
    return found, explain_snapshot(write_log(found))


def codes(report: SnapshotReport) -> list[str]:
    return [finding.rule.code for finding in find_findings(report)]


@pytest.mark.parametrize("name", RECIPES)
def test_the_log_agrees_with_itself_and_with_the_totals(name: str) -> None:
    found, report = explained(name)
    device = report.devices[0]
    assert not report.contradictions
    assert not report.record_remark
    assert device.peak_allocated_bytes == found.allocated.likely
    assert device.peak_reserved_bytes == found.reserved_bytes
    assert found.peak.phase in device.course.describe(device.peak_event)
    assert device.course.num_steps == 2
    for category, size in found.peak.by_category.items():
        assert device.owners_at_peak.get(category, 0) == pytest.approx(
            size, abs=0.001 * found.allocated.likely
        )


@pytest.mark.parametrize("name", ["adapted", "sharded"])
def test_the_log_has_the_basis_of_the_estimate(name: str) -> None:
    found, report = explained(name)
    assert report.record is not None
    rows = report.record.basis
    assert [row.what for row in rows if row.low_bytes is None] == list(found.assumptions)
    inside = [term for term in found.terms if term.name not in OUTSIDE]
    sizes = [row for row in rows if row.size_bytes]
    assert [(row.low_bytes, row.likely_bytes, row.high_bytes) for row in sizes] == [
        (term.low_bytes, term.bytes, term.high_bytes)
        for term in inside
        if term.low_bytes < term.high_bytes
    ]
    assert allocator_basis([report.record]).kind is BasisKind.ASSUMED
    outside = report.record.devices[0].outside
    assert [row.what for row in outside] == ["NCCL"] * (name == "sharded")


def test_a_log_that_is_written_can_be_read(tmp_path: Path) -> None:
    for number, (batch, is_written) in enumerate(((10**8, True), (4 * 10**8, False))):
        one = ullage.estimate_training("gpt2", batch=batch, length=256)
        if is_written:
            path = one.explanation.export(tmp_path / f"{number}.pickle")
            peak = ullage.explain_file(path).view.report.devices[0].peak_reserved_bytes
            assert peak == one.answer.estimate.reserved_bytes > 10 * 2**50
        else:
            with pytest.raises(SpecError, match=r"expected up to 64\.0 PiB"):
                _ = one.explanation


def test_layers_have_their_own_modules() -> None:
    _, report = explained("plain")
    shares = {share.path: share.size_bytes for share in report.devices[0].modules_at_peak}
    layers = [shares[f"layers.{number}.mlp.down_proj"] for number in range(16)]
    assert len(set(layers)) == 1
    assert layers[0] > 3 * 2048 * 8192 * 2  # a parameter and its two states
    assert shares["embed_tokens"] >= 3 * 128256 * 2048 * 2


def test_what_is_said_of_recipes() -> None:
    def said(**changes: Any) -> set[str]:
        return set(codes(explain_snapshot(write_log(estimate(batch=8, length=2048, **changes)))))

    plain = said()
    assert "UL125" in plain
    assert not {"UL103", "UL106", "UL124"} & plain
    assert "UL125" not in said(checkpointing="full")
    assert "UL106" in said(precision="amp-bf16")
    assert "UL123" in said(attention="eager")


@each(
    ("model", "changes", "num_layers"),
    [
        ("llama-3.2-1b", {}, 16),
        # The first stage has a quarter of 32, and keeps what four micro-batches left behind.
        ("llama-3.1-8b", {"length": 1024, "layout": Layout(pipeline=4, micro_batches=8)}, 8),
        # The first layer of each of the four groups has other lines than those that follow.
        ("resnet50", {"length": None, "image": 224}, 16),
    ],
)
def test_layers_are_modules_and_not_passes(
    model: str, changes: dict[str, Any], num_layers: int
) -> None:
    report = explain_snapshot(write_log(estimate(model, **{"batch": 8, "length": 2048} | changes)))
    finding = next(each for each in find_findings(report) if each.rule.code == "UL125")
    assert finding.what.endswith(f"from about {num_layers} layers")


def test_blocks_have_the_types_of_their_numbers() -> None:
    report = explain_snapshot(write_log(estimate(batch=8, length=2048, precision="amp-bf16")))
    owners = report.devices[0].owners
    assert owners.precision is not None
    names = np.array(PRECISIONS)[owners.precision]
    kept = (Category.PARAMETER, Category.GRADIENT)
    for category in kept:
        assert set(names[owners.category == code_of(category)]) == {"float32"}
    casts = next(each for each in find_findings(report) if each.rule.code == "UL106")
    assert set(names[[*casts.blocks]]) == {"bfloat16"}
    # A mask of dropout has half the size of what it drops, and is not its half in precision.
    whole = estimate("bge-large-en", batch=16, length=256)
    assert "UL122" not in codes(explain_snapshot(write_log(whole)))


def test_two_estimates_differ_first_in_their_recipes(tmp_path: Path) -> None:
    paths = []
    for number, changes in enumerate(({}, CHANGED)):
        one = ullage.estimate_training("llama-3.2-1b", length=128, **changes)
        paths.append(one.explanation.export(tmp_path / f"{number}.pickle"))
    found = ullage.diff(*paths)
    assert found.causes[0].kind is CauseKind.RECIPE
    assert "checkpointing none to full" in found.causes[0].text
    assert "lora none to 8, lora-targets none to q_proj,v_proj" in found.causes[0].text
    assert "zeroes-late none to on" in found.causes[0].text
    assert CauseKind.OPTIMIZER not in {cause.kind for cause in found.causes}


def test_two_logs_give_the_peaks_of_any_share_of_checkpoints() -> None:
    blocks = [Block(f"layers.{number}", "LlamaLayer") for number in range(16)]
    profiles = []
    for way in ("none", "full"):
        record = explain_snapshot(write_log(estimate(checkpointing=way, length=2048))).record
        assert record is not None
        profiles.append(read_profile(record, blocks))
    for every in (2, 4):
        choice = [int(not (number + 1) % every) for number in range(16)]
        peak = max(
            profiles[choice[stretch.own] if stretch.own >= 0 else 0].rest_bytes[stretch]
            + sum(
                int(profiles[choice[block]].kept_bytes[block]) for block in np.flatnonzero(is_live)
            )
            for stretch, is_live in profiles[0].live_blocks.items()
            if stretch in profiles[1].rest_bytes
        )
        played = estimate(checkpointing=every, length=2048).allocated.likely
        assert peak == pytest.approx(played, rel=0.01)


def row_of(name: str) -> list[str]:
    """A case as TABLE has it."""
    vector = VECTORS[name]
    config, gpu = Config(name, vector["config"]), find_gpu(vector["gpu"])
    found = estimate_training(config, make_recipe(vector["recipe"]), gpu)
    report = explain_snapshot(write_log(found))
    device = report.devices[0]
    assert not report.contradictions, name
    assert device.owners.is_known, name
    assert device.peak_allocated_bytes >= found.allocated.likely, name
    return [
        name, device.course.describe(device.peak_event), str(device.peak_allocated_bytes),
        str(device.peak_reserved_bytes),
        " ".join(f"{each.rule.code}:{each.gain_bytes}" for each in find_findings(report)),
    ]  # fmt: skip


def read_table() -> dict[str, list[str]]:
    with TABLE.open(encoding="utf-8", newline="") as file:
        return {row[0]: row for row in csv.reader(file)}


def test_each_case_has_its_row() -> None:
    assert read_table().keys() == VECTORS.keys()


@pytest.mark.slow
@each("name", VECTORS)
def test_a_case_is_explained_as_before(name: str) -> None:
    """After a change that is right: `python -m tests.unit.estimate.test_log` writes the table."""
    assert row_of(name) == read_table()[name]


def write_table() -> None:
    """Writes the table anew."""
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(map(row_of, VECTORS))


if __name__ == "__main__":
    write_table()
