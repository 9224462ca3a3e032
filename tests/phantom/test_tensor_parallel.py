"""Tensor parallel on real ranks (gloo, on the CPU): a script for one GPU comes to what it comes to
alone, up to the order of sums; and on the phantom each rank holds its part.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.phantom.alone import run_ranks

import ullage
from ullage.act.techniques.made_for import MadeFor
from ullage.act.techniques.plan import Plan
from ullage.act.techniques.technique import Action

pytestmark = pytest.mark.phantom

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "programs" / "plans"
TRAIN = str(PROGRAMS / "tensor_parallel.py")
MAIN = "from ullage.cli import main; main()"
TIMEOUT_S = 300
# Sums in another order differ in the last bits of float32, and four steps of Adam at a rate of
# 0.01 make that larger where a gradient is near zero.
CLOSE, CLOSE_AFTER_STEPS = 1e-5, 1e-3
COMPARE = """
import json, sys, torch
def off(a, b):
    if isinstance(a, dict):
        return max((off(a[k], b[k]) for k in a), default=0.0) if list(a) == list(b) else None
    if isinstance(a, list):
        return max(map(off, a, b), default=0.0)
    if isinstance(a, torch.Tensor):
        return (a - b).abs().max().item() if a.shape == b.shape else None
    return abs(a - b)
alone, *ranks = [torch.load(one, weights_only=True) for one in sys.argv[1:]]
print(json.dumps([{**{k: off(alone[k], one[k]) for k in alone if k != "held"},
                   "held": one["held"] / alone["held"]} for one in ranks]))
"""


def run(python: Path, *words: str, ours: bool = False) -> subprocess.CompletedProcess[str]:
    """A process on the CPU, that sees no plan of another's."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("ULLAGE_")}
    kept |= {"PYTHONPATH": str(ROOT / "src")} if not ours else {}
    command = [sys.executable if ours else str(python), *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT_S, env=kept, check=False
    )


@cache
def plan_for(python: Path, kind: str) -> Plan:
    """Tensor parallel for a model of the program."""
    if not list(python.parent.parent.glob("lib/python*/site-packages/transformers")):
        pytest.skip("not in the environment: transformers")
    said = run(python, str(PROGRAMS / "tensor_parallel_plan.py"), kind)
    assert not said.returncode, said.stderr
    return Plan((Action("tensor_parallel"),), MadeFor(**json.loads(said.stdout.splitlines()[-1])))


def train(
    python: Path, directory: Path, kind: str, how: str, size: int = 2
) -> subprocess.CompletedProcess[str]:
    """The program on real ranks under the plan."""
    plan = directory / "plan.json"
    plan_for(python, kind).save(plan)
    words = ["torchrun", "--standalone", "--nproc-per-node", str(size), TRAIN]
    return run(
        python, "-c", MAIN, "exec", "--plan", str(plan), "--python", str(python), "--",
        *words, str(directory), kind, how, ours=True,
    )  # fmt: skip


def test_two_ranks_with_half_of_each_matrix_train_as_one_process(thin_python: Path) -> None:
    done = run_ranks(thin_python, "plans/split_by_hand.py")
    assert not any(one.returncode for one in done), [one.stderr for one in done]
    found = json.loads(done[0].stdout.splitlines()[-1])
    assert found["held"] == 0.5
    assert found["under"] < CLOSE and found["after"] < CLOSE, found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("normed", "clips"),
        pytest.param("biased", "loads", marks=pytest.mark.nightly),
        pytest.param("tied", "plain", marks=pytest.mark.nightly),
        pytest.param("llama", "clips", marks=pytest.mark.nightly),
    ],
)
def test_two_ranks_come_to_what_one_process_comes_to(
    thin_python: Path, tmp_path: Path, kind: str, how: str
) -> None:
    (tmp_path / "alone").mkdir()
    ran = train(thin_python, tmp_path, kind, how)
    assert not ran.returncode, ran.stderr[-4000:]
    alone = run(thin_python, TRAIN, str(tmp_path / "alone"), kind, how)
    assert not alone.returncode, alone.stderr
    files = [tmp_path / "alone" / "rank0.pt", tmp_path / "rank0.pt", tmp_path / "rank1.pt"]
    compared = run(thin_python, "-c", COMPARE, *map(str, files))
    assert not compared.returncode, compared.stderr
    for one in json.loads(compared.stdout):
        assert one["losses"] < CLOSE and one["norms"] < CLOSE, one
        assert one["model"] < CLOSE_AFTER_STEPS and one["optimizer"] < CLOSE_AFTER_STEPS, one
        assert one["drawn"] == 0.0
        assert 0.5 < one["held"] < 0.65  # of the parameters; embedding, norms and head are whole


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "how", "said"),
    [
        ("one_head", "plain", "num_key_value_heads is 1, which 2 ranks cannot share"),
        ("dropout", "plain", "has dropout, which ranks would draw alike"),
        ("llama", "apart", "have other batches, or draw other random numbers"),
        ("llama", "copies", "it copies its model, of which each rank has parts"),
    ],
)
def test_what_would_come_to_something_else_is_refused(
    thin_python: Path, tmp_path: Path, kind: str, how: str, said: str
) -> None:
    ran = train(thin_python, tmp_path, kind, how)
    assert ran.returncode and said in ran.stderr, ran.stderr[-4000:]


@pytest.mark.slow
def test_a_rank_of_the_phantom_holds_its_part(thin_python: Path, tmp_path: Path) -> None:
    plan = plan_for(thin_python, "normed")
    words = [TRAIN, str(tmp_path), "normed", "plain"]
    split = ullage.run(words, gpu="rtx-4090", python=thin_python, plan=plan, world_size=2)
    whole = ullage.run(words, gpu="rtx-4090", python=thin_python)
    assert split.exit_code == 0, split.text()
    ours, theirs = (held(one) for one in (split, whole))
    assert 0.5 < ours["parameter"] / theirs["parameter"] < 0.7
    assert 0.5 < ours["optimizer_state"] / theirs["optimizer_state"] < 0.7


def held(run: ullage.Run) -> dict[str, Any]:
    """What a run held at its peak, by owner."""
    found: dict[str, Any] = run.document["devices"][0]["at_peak"]
    return found
