"""A ladder file: what it says is what its proofs say, and bad ones are refused with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ullage.act.guard.ladder import load_plans
from ullage.act.techniques.ladder_file import LadderFile, Proof, ProvedRung, is_ladder
from ullage.act.techniques.made_for import MadeFor
from ullage.act.techniques.plan import Plan
from ullage.act.techniques.technique import Action
from ullage.ground.errors import PlanError, SpecError

GIB = 1 << 30
PLAN = Plan((Action("checkpoint", ("0",)),), MadeFor("2.15.0", "Sequential", 8, {"0": "Block"}))


def proofs(text: str) -> tuple[Proof, ...]:
    """ "512 1024 2048!" are three sizes, of which the last does not fit."""
    words = [(int(word.rstrip("!")), not word.endswith("!")) for word in text.split()]
    return tuple(Proof(size, fits, GIB, 2 * GIB, 0, 0.5) for size, fits in words)


@pytest.fixture
def ladder() -> LadderFile:
    """Two rungs for two lengths."""
    rungs = (ProvedRung(None, proofs("512 1024!")), ProvedRung(PLAN, proofs("512 1024")))
    words = ("train.py", "{length}")
    return LadderFile("2.15.0", "l4", 24 * GIB, 20 * GIB, words, "length", rungs)


def test_what_was_written_is_read(ladder: LadderFile, tmp_path: Path) -> None:
    path = tmp_path / "ladder.json"
    ladder.save(path)
    assert LadderFile.load(path) == ladder
    assert ladder.plans == (PLAN,)
    with pytest.raises(SpecError, match="exists"):
        ladder.save(path)


def test_a_file_of_a_ladder_stands_for_its_rungs(ladder: LadderFile, tmp_path: Path) -> None:
    path, other = tmp_path / "ladder.json", tmp_path / "plan.json"
    ladder.save(path)
    other.write_text('{"schema": "ullage.plan/1"}')
    assert is_ladder(path) and not is_ladder(other) and not is_ladder(tmp_path / "none.json")
    assert load_plans([path, PLAN]) == [PLAN, PLAN]


@pytest.mark.parametrize(
    ("text", "proved_to"),
    [("512 1024", 1024), ("512 1024!", 512), ("512!", 0), ("512! 1024", 0), ("2 4! 8", 2), ("", 0)],
)
def test_a_rung_is_proved_up_to_the_first_size_that_does_not_fit(text: str, proved_to: int) -> None:
    assert ProvedRung(PLAN, proofs(text)).proved_to == proved_to


def drop_schema(document: dict[str, Any]) -> None:
    document["schema"] = "ullage.find_ladder/9"


def be_a_plan(document: dict[str, Any]) -> None:
    document["schema"] = "ullage.plan/1"


def lack_a_field(document: dict[str, Any]) -> None:
    del document["budget_bytes"]


def boast(document: dict[str, Any]) -> None:
    document["rungs"][0]["proved_to"] = 1024


def have_no_first(document: dict[str, Any]) -> None:
    del document["rungs"][0]


def have_no_number(document: dict[str, Any]) -> None:
    document["rungs"][1]["proofs"][0]["reserved_bytes"] = "much"


def be_out_of_order(document: dict[str, Any]) -> None:
    document["rungs"][1]["proofs"].reverse()


def have_another_technique(document: dict[str, Any]) -> None:
    document["rungs"][1]["plan"]["actions"][0]["technique"] = "magic"


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (drop_schema, "its schema is 'ullage.find_ladder/9'; this ullage"),
        (be_a_plan, "it is one plan, not a ladder; pass it in a list"),
        (lack_a_field, "the ladder.budget_bytes is missing; make it again"),
        (boast, "a rung says proved_to 1024, and its proofs go to 512"),
        (have_no_first, "its first rung, and only that, is the unchanged program"),
        (have_no_number, "rungs[1].proofs[0].reserved_bytes is 'much'; expected a whole number"),
        (be_out_of_order, "not in the order of their sizes"),
        (have_another_technique, "there is no technique 'magic'"),
    ],
)
def test_a_bad_file_is_refused(
    ladder: LadderFile, tmp_path: Path, damage: Callable[[dict[str, Any]], None], text: str
) -> None:
    document = json.loads(json.dumps(ladder.document))
    damage(document)
    path = tmp_path / "ladder.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(PlanError) as error:
        LadderFile.load(path)
    assert str(error.value).startswith(f"{path}: ")
    assert text in str(error.value)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot be read"):
        LadderFile.load(tmp_path / "missing.json")
    path = tmp_path / "ladder.json"
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(PlanError, match=r"the ladder is .*; expected an object"):
        LadderFile.load(path)
    path.write_text("[" * 5000, encoding="utf-8")
    assert not is_ladder(path)
