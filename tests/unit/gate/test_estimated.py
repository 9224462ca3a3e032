"""Scenarios of a model and a recipe: what they may say, and what the lock has of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.rows import each

import ullage
from ullage.players.eager.training.estimate import OUTSIDE
from ullage.verbs.check.gate.compare import HEADROOM
from ullage.verbs.check.gate.config import load_configuration
from ullage.verbs.check.gate.lock import read_lock
from ullage.verbs.check.gate.scenario import expand
from ullage.verbs.check.gate.verdicts import State

Refuse = Callable[[Path, str, int, str], None]
MODEL = '[scenario.x]\nmodel = "llama-3.2-1b"\ngpu = "l4"\nlength = 64\n'
WRONG = {
    "batch = 0": "x.batch: found 0, expected at least 1",
    'batch = "x"': "x.batch is 'x'; expected a whole number",
    'precision = "bf15"': "x.precision: found 'bf15', expected fp32",
    'optimzer = "sgd"': "did you mean 'optimizer'?",
    'optimizer = "adamx"': "x.optimizer: found 'adamx', expected adamw",
    "lora = { rnk = 1 }": "x.lora has no key 'rnk'; did you mean 'rank'?",
    "lora = { rank = 0 }": "lora rank: found 0",
    'layout = { data = 2, sharding = "fsd" }': "x.layout.sharding: found 'fsd', expected ddp",
    'matrix = { batch = ["a"] }': "x.matrix.batch is 'a'; expected a whole number",
    "matrix = { batch = [1, 0] }": "x.matrix.batch: found 0",
    "matrix = { size = [1] }": "x.matrix has 'size'; expected keys of the recipe",
    "steps = 3": "x.steps does not go with model",
    'command = "train.py"': "x.command does not go with model",
    'budget = { growth_per_step = "0B" }': "is not known of an estimate",
}


@each("line", WRONG)
def test_a_mistake_is_told_with_its_line(tmp_path: Path, refuse: Refuse, line: str) -> None:
    refuse(tmp_path, f"{MODEL}{line}\n", 5, WRONG[line])


@pytest.mark.parametrize(
    ("text", "number", "message"),
    [
        ('[scenario.x]\ncommand = "t.py"\nbatch = 3\n', 3, "is for a model; add model ="),
        ('[scenario.x]\nmodel = "llama-9"\nlength = 3\n', 2, "x.model: found 'llama-9'"),
        ('[scenario.x]\nmodel = "llama-3.2-1b"\n', 1, "x.length: not given"),
    ],
)
def test_what_cannot_be_estimated_is_told_with_its_line(
    tmp_path: Path, refuse: Refuse, text: str, number: int, message: str
) -> None:
    refuse(tmp_path, text, number, message)


def test_the_matrix_has_keys_of_the_recipe_and_variables_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "ullage.toml").write_text(
        '[scenario.x]\nmodel = "{name}"\nlength = 8\n'
        'matrix = { name = ["gpt2", "smollm2-135m"], checkpointing = ["none", 2] }\n'
    )
    cases = expand(load_configuration(tmp_path).scenarios["x"])
    assert [case.text for case in cases] == [
        "estimate gpt2, length 8", "estimate gpt2, length 8, checkpointing 2",
        "estimate smollm2-135m, length 8", "estimate smollm2-135m, length 8, checkpointing 2",
    ]  # fmt: skip
    assert cases[1].name == "x/name=gpt2,checkpointing=2"


def test_lock_and_check_have_the_figures_of_the_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = f"{MODEL}lora = {{ rank = 8 }}\nbudget = {{ headroom = '5%' }}\n"
    Path("ullage.toml").write_text(text)
    assert ullage.lock().exit_code == 0
    asked = {"length": 64, "lora": 8, "gpu": "l4"}
    estimate = ullage.estimate_training("llama-3.2-1b", **asked).answer.estimate  # type: ignore[arg-type]
    entry = read_lock(Path("ullage.lock")).scenarios["x"]
    assert entry.peaks.allocated_bytes == estimate.allocated.likely
    assert entry.peaks.reserved_bytes == estimate.reserved_bytes
    assert entry.peaks.used_bytes == estimate.high_bytes
    sentences = {line.partition(";")[0] for line in estimate.assumptions}
    rest = {name.partition(",")[0] for name in set(entry.assumed) - sentences}
    assert sentences < set(entry.assumed)
    assert rest == {
        term.name
        for term in estimate.terms
        if term.low_bytes < term.high_bytes and term.name not in OUTSIDE
    }
    assert sum(entry.categories.values()) == entry.peaks.allocated_bytes
    assert (entry.key.torch, entry.key.gpu, entry.growth_bytes) == (estimate.torch, "l4", None)
    passed = ullage.check()
    assert (passed.exit_code, passed.judged[0].state) == (0, State.PASSED)
    # A budget holds at the upper end.
    judgements = {each.name: each for each in passed.judged[0].comparisons[0].judgements}
    left = (estimate.capacity_bytes or 0) - estimate.high_bytes
    assert judgements[HEADROOM].found_bytes == left
    Path("ullage.toml").write_text(text.replace("rank = 8", "rank = 512"))
    broken = ullage.check()
    assert (broken.exit_code, broken.judged[0].state) == (1, State.EXCEEDED)
    assert "lora 8 to 512" in broken.text()


def test_what_does_not_fit_at_the_upper_end_is_out_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ullage.toml").write_text(f"{MODEL}batch = 200\n")
    (judged,) = ullage.check().judged
    assert judged.state is State.OUT_OF_MEMORY
    assert judged.reason.startswith("does not fit on l4: it takes ")
