"""Programs with one known fault each, and their clean twins: the right finding comes first, and
nothing is found where there is nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ullage
from ullage.explain.rules.rule import Finding, Kind
from ullage.ground.units import format_bytes
from ullage.verbs.explain.function import explain_file

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]
PROGRAMS = Path(__file__).parents[1] / "programs" / "faults"

# What a program without a fault has, too: most of its peak are activations, or expandable segments
# would reserve less, which a replay has measured.
OF_ANY = {"UL125", "UL126", "UL141"}
# The program, the finding that is to come first, and the line that it is to name.
FAULTS = {
    "kept_graphs": ("UL111", "kept_graphs.py:13"),
    "growing_outputs": ("UL112", "growing_outputs.py:13"),
    "missing_zero_grad": ("UL103", ""),
    "two_graphs": ("UL113", "two_graphs.py:14"),
    "stale_output": ("UL113", "stale_output.py:13"),
    "growing_lengths": ("UL141", ""),
    "forgotten_no_grad": ("UL114", "forgotten_no_grad.py:18"),
    "large_logits": ("UL121", "large_logits.py:18"),
    "upcast_norm": ("UL122", "upcast_norm.py"),
    "attention_matrix": ("UL123", "in attention"),
    "attention_mask": ("UL124", "in make_causal_mask"),
    "unlimited_cache": ("UL112", "unlimited_cache.py:19"),
    "concatenated_cache": ("UL131", "concatenated_cache.py:24"),
    "cyclic_reference": ("UL115", "cyclic_reference.py:21"),
    "mask_per_layer": ("UL132", "mask_per_layer.py:40"),
    "data_on_gpu": ("UL133", "data_on_gpu.py:11"),
    "zeroed_gradients": ("UL104", ""),
    "foreach_step": ("UL102", "foreach_step.py:15"),
    "autocast_weights": ("UL106", "autocast_weights.py:16"),
    "second_weights": ("UL105", "second_weights.py:11"),
    "pairwise_spike": ("UL147", "pairwise_spike.py:22"),
    "many_streams": ("UL148", ""),
    "leaks_until_full": ("UL153", ""),
    "optimizer_states": ("UL101", ""),
    "large_warmup": ("UL144", "large_warmup.py:13"),
    "dead_weight": ("UL116", "dead_weight.py:12"),
    "large_cache": ("UL136", "large_cache.py:34"),
    "pageable_batches": ("UL161", "pageable_batches.py:14"),
    "awaited_batches": ("UL162", "awaited_batches.py:13"),
    "pinned_history": ("UL163", ""),
    "copies_in_line": ("UL164", "copies_in_line.py:16"),
    "converted_weights": ("UL107", "converted_weights.py:10"),
    "former_model": ("UL108", "former_model.py:13"),
    "stored_results": ("UL112", "stored_results.py:12"),
    "kept_evaluation": ("UL131", "kept_evaluation.py:20"),
    "cyclic_context": ("UL115", "cyclic_context.py:16"),
    "limited_process": ("UL156", ""),
}
# Twins that are right in one thing, and leave another that is worth less.
LEFT = {name: {"UL164"} for name in ("pageable_batches", "awaited_batches", "data_on_gpu")}
# The others are as long, and are run by night.
BY_DAY = {"kept_graphs", "forgotten_no_grad", "growing_lengths", "cyclic_reference",
          "leaks_until_full", "dead_weight", "pageable_batches", "copies_in_line"}  # fmt: skip
NAMES = [pytest.param(name, marks=[] if name in BY_DAY else pytest.mark.nightly) for name in FAULTS]


def findings(run_program: RunProgram, name: str, *flags: str) -> tuple[Finding, ...]:
    """What is found in the snapshot of a run."""
    gpu = "t4" if name == "leaks_until_full" else "h100-80gb"
    outcome = run_program(f"faults/{name}.py", *flags, gpu=gpu)
    assert outcome.document["verdict"] != "failed", outcome.stderr
    return explain_file(outcome.directory / "snapshot.pickle").findings


@pytest.mark.parametrize("name", NAMES)
def test_the_fault_is_found_first(run_program: RunProgram, name: str) -> None:
    code, place = FAULTS[name]
    found = findings(run_program, name)
    found = tuple(one for one in found if code in OF_ANY or one.rule.code not in OF_ANY)
    assert [one.rule.code for one in found[:1]] == [code]
    assert not found[0].is_guess
    assert (found[0].gain_bytes > 0) is (found[0].rule.kind is not Kind.TIME)
    assert place in "\n".join(found[0].evidence)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_found_in_the_clean_twin(run_program: RunProgram, name: str) -> None:
    others = {one.rule.code: one.what for one in findings(run_program, name, "--clean")}
    wrong = {code: what for code, what in others.items() if code not in OF_ANY}
    assert set(wrong) == LEFT.get(name, set()), wrong


def test_a_run_that_fits_says_what_its_largest_finding_is_worth(
    thin_python: Path, tmp_path: Path
) -> None:
    program, path = str(PROGRAMS / "dead_weight.py"), tmp_path / "snapshot.pickle"
    run = ullage.run([program], gpu="h100-80gb", python=thin_python, snapshot=path)
    # The images are not needed any more; of the head's activations some are made after the peak.
    assert [each.rule.code for each in run.findings] == ["UL116", "UL141"]
    gain = run.findings[0].gain_bytes
    assert 0.9 < gain / (65536 * 4096 * 4) <= 1
    share = f"{format_bytes(gain)} ({100 * gain / run.peak_allocated_bytes:.0f} % of the peak)"
    line = f"The largest of 2 findings is worth up to {share}: ullage explain {path}"
    assert run.text().splitlines()[-1] == line
    clean = ullage.run([program, "--clean"], gpu="h100-80gb", python=thin_python)
    assert clean.findings == () and "ullage explain" not in clean.text()


def test_every_program_of_the_directory_is_tried() -> None:
    programs = {path.stem for path in PROGRAMS.glob("*.py")}
    assert programs == set(FAULTS)
    assert programs > BY_DAY
