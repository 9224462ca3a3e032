"""A plan as a file: what is written is what is read, and nothing else is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.rows import each

import ullage
from ullage.act.techniques.catalog import TECHNIQUES
from ullage.act.techniques.made_for import MadeFor, public_version
from ullage.act.techniques.plan import Foreseen, Plan
from ullage.act.techniques.technique import Action, Place
from ullage.ground.errors import PlanError, SpecError

MADE_FOR = MadeFor("2.15.0+cu132", "GPT", 1_000, {"h.0": "Block", "h.1": "Block"}, "AdamW")
FORESEEN = Foreseen("rtx-4090", 24 << 30, 23 << 30, 22 << 30, 0.25, 1 << 30)
PLAN = Plan((Action("checkpoint", ("h.0", "h.1")),), MADE_FOR, FORESEEN)


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    PLAN.save(path)
    assert ullage.Plan.load(path) == PLAN
    assert json.loads(path.read_text())["schema"] == "ullage.plan/1"


def test_a_plan_does_not_replace_a_file_by_chance(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("mine")
    with pytest.raises(SpecError, match="exists"):
        PLAN.save(path)
    PLAN.save(path, force=True)
    assert Plan.load(path) == PLAN


def test_a_plan_by_hand_needs_no_foresight(tmp_path: Path) -> None:
    plan = replace(PLAN, foreseen=None)
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").foreseen is None


def changed(*path: Any, to: Any) -> str:
    """The plan's text with one value changed, or put in."""
    document = PLAN.document
    inner: Any = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = to
    return json.dumps(document)


WRONG = {
    "an unknown field": (changed("speed", to=1), "the plan has no key 'speed'"),
    "an unknown field of an action": (
        changed("actions", 0, "module", to="h.0"),
        r"actions\[0\] has no key 'module'; did you mean 'modules'",
    ),
    "an unknown field of the program": (
        changed("made_for", "kind", to="GPT"), "made_for has no key 'kind'"
    ),
    "an unknown technique": (
        changed("actions", 0, "technique", to="checkpunt"), "there is no technique 'checkpunt'"
    ),
    "an unknown setting": (
        changed("actions", 0, "settings", to={"every": 2}), "has no setting 'every'"
    ),
    "products that are neither of a kind nor numbers": (
        changed("actions", 0, to={
            "technique": "selective_checkpoint", "modules": ["h.0"], "settings": {"saves": "0;3"},
        }),
        "saves is '0;3'; expected one of matmul_and_attention, .* such as '0,2,3'",
    ),
    "another schema": (changed("schema", to="ullage.plan/2"), "its schema is 'ullage.plan/2'"),
    "a number that is text": (
        changed("made_for", "num_parameters", to="1000"), "made_for.num_parameters is '1000'"
    ),
    "a number that is a truth": (
        changed("made_for", "num_parameters", to=True), "made_for.num_parameters is true"
    ),
    "modules that are a list": (
        changed("made_for", "modules", to=["h.0"]), r"made_for.modules is \['h.0'\]"
    ),
    "modules without a class": (
        changed("made_for", "modules", to={"h.0": None}), "made_for.modules.h.0 is None"
    ),
    "actions that are none": (changed("actions", to={}), "actions is {}; expected a list"),
    "a path that is a number": (
        changed("actions", 0, "modules", to=[0]), r"actions\[0\].modules\[0\] is 0; expected a text"
    ),
    "no modules where some are wanted": (
        changed("actions", 0, "modules", to=[]), "'checkpoint' needs module paths"
    ),
    "no program": (
        json.dumps({**PLAN.document, "made_for": {}}), "made_for.torch is missing; create it",
    ),
    "a list": ("[]", "the plan is .*; expected an object"),
    "no JSON": ("{", "is not a plan: "),
}  # fmt: skip


@each("name", WRONG)
def test_what_is_no_plan_is_refused(name: str) -> None:
    text, message = WRONG[name]
    with pytest.raises(PlanError, match=message):
        Plan.parse(text)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="cannot be read"):
        Plan.load(tmp_path / "plan.json")


def test_the_error_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(PlanError, match=r"plan\.json: its schema is None"):
        Plan.load(tmp_path / "plan.json")


def test_a_technique_is_named_once_for_a_module() -> None:
    twice = (Action("checkpoint", ("h.0",)), Action("checkpoint", ("h.1", "h.0")))
    with pytest.raises(PlanError, match=r"'checkpoint' is in the plan twice on h\.0"):
        Plan(twice, MADE_FOR)
    assert Plan((Action("checkpoint", ("h.0",)), Action("checkpoint", ("h.1",))), MADE_FOR)


EXCLUDING = [
    (technique.name, other)
    for technique in TECHNIQUES.values()
    for other in technique.excludes
    if technique.place is not Place.MODULES and TECHNIQUES[other].place is not Place.MODULES
]


@each(("first", "other"), EXCLUDING)
def test_techniques_that_do_not_go_together_are_refused(first: str, other: str) -> None:
    for names in ((first, other), (other, first)):
        with pytest.raises(PlanError, match="do not go together"):
            Plan(tuple(Action(name) for name in names), MADE_FOR)


@each("technique", TECHNIQUES.values(), name=lambda technique: technique.name)
def test_what_a_technique_says_of_others_and_of_its_settings_is_so(technique: Any) -> None:
    modules = ("h.0",) if technique.place is Place.MODULES else ()
    assert set(technique.excludes) <= set(TECHNIQUES) - {technique.name}
    assert technique.apply or technique.variables
    assert technique.reference.startswith("https://")
    for settings in technique.variants:
        technique.check(Action(technique.name, modules, settings))


def test_a_program_that_is_the_same_differs_in_nothing() -> None:
    assert MADE_FOR.differences(MADE_FOR) == []
    assert MADE_FOR.differences(replace(MADE_FOR, torch="2.15.0+cpu")) == []


@pytest.mark.parametrize(
    "changes,difference",
    [
        ({"torch": "2.14.0+cu132"}, "torch is 2.14.0, and was 2.15.0"),
        ({"model": "BERT"}, "the model is BERT, and was GPT"),
        ({"num_parameters": 2_000}, "the number of parameters is 2,000, and was 1,000"),
        ({"optimizer": "SGD"}, "the optimizer is SGD, and was AdamW"),
        ({"optimizer": None}, "the optimizer is none, and was AdamW"),
        ({"modules": {"h.0": "Block"}}, "there is no module h.1"),
        ({"modules": {"h.0": "Block", "h.1": "Linear"}}, "h.1 is a Linear, and was a Block"),
    ],
)
def test_a_program_that_differs_is_told(changes: dict[str, Any], difference: str) -> None:
    assert MADE_FOR.differences(replace(MADE_FOR, **changes)) == [difference]


def test_a_version_is_compared_without_what_it_was_built_for() -> None:
    assert public_version("2.15.0+cu132") == public_version("2.15.0") == "2.15.0"


def test_a_plan_says_what_it_does_in_a_line() -> None:
    assert PLAN.summary == "checkpoint (2 modules)"
    assert Plan((), MADE_FOR).summary == "the unchanged program"


def test_what_a_plan_sets_in_the_environment_is_what_its_techniques_set() -> None:
    plan = Plan((Action("allocator", settings={"expandable_segments": True}),), MADE_FOR)
    assert "expandable_segments:True" in plan.variables["PYTORCH_ALLOC_CONF"]
    assert PLAN.variables == {}


def test_of_many_differences_some_are_named() -> None:
    modules = {f"h.{number}": "Block" for number in range(9)}
    texts = replace(MADE_FOR, modules=modules).differences(replace(MADE_FOR, modules={}))
    assert texts == [
        *(f"there is no module h.{number}" for number in range(3)),
        "and 6 more like it",
    ]
