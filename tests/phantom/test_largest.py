"""The largest batch end to end: it fits, the next does not, and a plan makes it larger."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import ullage
from ullage.act.techniques.catalog import TECHNIQUES
from ullage.search import menu
from ullage.search.findings import AS_IT_IS

pytestmark = pytest.mark.phantom

ROOT = Path(__file__).parents[2]
GPT2 = str(ROOT / "examples" / "gpt2" / "train.py")
WORDS = [GPT2, "--seq-len", "512", "--batch-size", "{batch}"]
MAIN = "from ullage.cli import main; main()"
TIMEOUT_S = 600
GPU = "rtx-2060"
# Enough for a larger batch, and few enough to run.
FEW = ("checkpoint", "optimizer_kernel")


@pytest.fixture(scope="module")
def found(thin_python: Path) -> ullage.Largest:
    """A search with two techniques."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(menu, "TECHNIQUES", {name: TECHNIQUES[name] for name in FEW})
        return ullage.largest(WORDS, gpu=GPU, python=thin_python)


def fits(found: ullage.Largest, size: int, python: Path, *, is_planned: bool) -> bool:
    """Whether a size fits, by a run of its own."""
    words = [word.replace("{batch}", str(size)) for word in WORDS]
    plan = found.plan if is_planned else None
    run = ullage.run(words, gpu=GPU, python=python, plan=plan, steps=3, stdout_to_stderr=True)
    return run.exit_code == 0


@pytest.mark.nightly
def test_a_plan_makes_it_larger(found: ullage.Largest) -> None:
    report = found.report
    assert report.as_it_is is not None and report.best is not None
    assert report.best.size > report.as_it_is.size
    assert "checkpoint" in report.best.name
    assert found.plan is not None and found.plan.foreseen is not None
    assert found.plan.foreseen.peak_used_bytes <= report.gpu.total_bytes


@pytest.mark.nightly
def test_the_largest_fits_and_the_next_does_not(thin_python: Path, found: ullage.Largest) -> None:
    assert found.size is not None
    assert fits(found, found.size, thin_python, is_planned=True)
    assert not fits(found, found.size + 1, thin_python, is_planned=True)


@pytest.mark.nightly
def test_so_it_is_without_a_plan(thin_python: Path, found: ullage.Largest) -> None:
    plain = found.report.as_it_is
    assert plain is not None
    assert fits(found, plain.size, thin_python, is_planned=False)
    assert not fits(found, plain.size + 1, thin_python, is_planned=False)


@pytest.mark.nightly
def test_each_answer_was_seen_and_none_beats_another(found: ullage.Largest) -> None:
    answers = found.report.answers
    for one in answers:
        assert one.seen.fits
        assert one.beyond == one.size + 1
        assert one.why_not
        assert one.step_s > 0
    planned = [one for one in answers if one.name != AS_IT_IS]
    assert [one.size for one in planned] == sorted((one.size for one in planned), reverse=True)
    times = [one.unit_s for one in planned]
    assert times == sorted(times, reverse=True)
    fastest = found.report.fastest
    assert fastest is not None
    assert fastest.unit_s == min(one.unit_s for one in answers)


@pytest.mark.nightly
def test_few_runs_find_it(found: ullage.Largest) -> None:
    """Most are two for each plan that is tried, at the size where it is expected to end."""
    assert found.report.num_runs <= 45


def search(thin_python: Path, directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`ullage largest WORDS` under the environment of the tests."""
    return subprocess.run(
        [sys.executable, "-c", MAIN, "largest", "--python", str(thin_python), *words],
        cwd=directory, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_another_variable_in_multiples_as_it_is(thin_python: Path, tmp_path: Path) -> None:
    done = search(
        thin_python, tmp_path, "--gpu", "t4", "--budget", "4GiB", "--multiple-of", "64",
        "--allow", "none", "--json", "--",
        GPT2, "--batch-size", "1", "--seq-len", "{length}",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["schema"], document["variable"]) == ("ullage.largest/1", "length")
    (answer,) = document["answers"]
    assert document["largest"] == document["as_it_is"] == answer["size"]
    assert answer["size"] % 64 == 0 and answer["beyond"] == answer["size"] + 64
    assert answer["peak_used_bytes"] <= 4 * 2**30
    assert document["plan"] is None


@pytest.mark.slow
def test_a_program_that_fails_is_not_judged(thin_python: Path, tmp_path: Path) -> None:
    program = str(ROOT / "tests" / "programs" / "fails.py")
    done = search(thin_python, tmp_path, "--gpu", "t4", "--", program, "{batch}")
    assert done.returncode == 3, done.stderr
    assert "failed" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--", "train.py"], "found no name in braces; expected one"),
        (["--", "train.py", "{batch}", "{length}"], "found batch, length in braces"),
        (["--vary", "no name", "--", "train.py"], "not a name for a variable"),
        (["--vary", "length", "--", "train.py", "{batch}"], "no word of the program has {length}"),
        (["--multiple-of", "0", "--", "{batch}"], "0 is not in the range x>=1"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    thin_python: Path, tmp_path: Path, words: list[str], said: str
) -> None:
    done = search(thin_python, tmp_path, "--gpu", "t4", *words)
    assert done.returncode == 2, done.stdout
    assert said in done.stderr
