"""The smallest GPU end to end: the program runs there under the plan, and on none before it."""

from __future__ import annotations

from pathlib import Path

import pytest

import ullage
from ullage.act.techniques.catalog import TECHNIQUES
from ullage.facts.gpus.catalog import find_gpu
from ullage.search import fit, menu

pytestmark = [pytest.mark.phantom, pytest.mark.nightly]

ROOT = Path(__file__).parents[2]
GPT2 = [str(ROOT / "examples" / "gpt2" / "train.py"), "--batch-size", "8"]
FEW = ("checkpoint", "optimizer_kernel")
# By memory; torch has no code for the third and the fourth any more.
GPUS = ("rtx-2060", "rtx-3070", "gtx-1080", "titan-v", "rtx-3080-10gb", "t4")


@pytest.fixture(scope="module")
def found(thin_python: Path) -> ullage.Fit:
    """A search with two techniques, without a device, in a catalogue of six."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(menu, "TECHNIQUES", {name: TECHNIQUES[name] for name in FEW})
        patched.setattr(fit, "load_catalog", lambda: [find_gpu(slug) for slug in GPUS])
        return ullage.fit(GPT2, smallest_gpu=True, python=thin_python)


def test_the_plan_is_for_the_smallest(found: ullage.Fit) -> None:
    smallest, report = found.report.smallest, found.report
    assert smallest is not None and report.best is not None and report.best.seen is not None
    assert smallest.gpu == report.gpu.slug == "rtx-3080-10gb"
    assert smallest.used_bytes <= smallest.total_bytes == report.budget_bytes
    assert report.best.seen.fits
    assert report.best.step_s <= max(one.step_s for one in report.candidates)


def test_it_runs_there(thin_python: Path, found: ullage.Fit) -> None:
    run = ullage.run(
        GPT2, gpu="rtx-3080-10gb", python=thin_python, plan=found.plan, stdout_to_stderr=True
    )
    assert run.exit_code == 0


def test_what_is_too_small_or_too_old_is_told(found: ullage.Fit) -> None:
    smallest = found.report.smallest
    assert smallest is not None
    assert "no kernel image" in smallest.too_small["gtx-1080"]
    assert set(smallest.too_small) <= set(GPUS[:4])
    text = found.text()
    assert "The smallest GPU on which it fits: rtx-3080-10gb" in text
    assert "not gtx-1080: " in text


def test_what_was_not_tried_does_not_fit(thin_python: Path, found: ullage.Fit) -> None:
    smallest = found.report.smallest
    assert smallest is not None
    for slug in set(GPUS[:2]) - set(smallest.too_small):
        run = ullage.run(
            GPT2, gpu=slug, python=thin_python, plan=found.plan, steps=3, stdout_to_stderr=True
        )
        assert run.exit_code == 1, slug
