"""The work of a step: operations that can be counted by hand, in the module and the part they are
for.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from ullage.api.run import run_job
from ullage.phantom.device import choose_device
from ullage.runs.job import make_job, make_options
from ullage.trace.model import Record
from ullage.trace.work import Work

pytestmark = pytest.mark.phantom

BATCH, WIDE, NARROW = 64, 512, 256
PROGRAM = f"""
import torch
from torch import nn

model = nn.Sequential(nn.Linear({WIDE}, {NARROW}), nn.ReLU(), nn.Linear({NARROW}, {WIDE})).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
for _ in range(2):
    loss = model(torch.randn({BATCH}, {WIDE}).cuda().requires_grad_()).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
CUSTOM = f"""
import torch

@torch.library.custom_op("tests::product", mutates_args=())
def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.relu() @ b

weight = torch.zeros({WIDE}, {NARROW}, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1, foreach=False)
inputs = torch.zeros({BATCH}, {WIDE}, device="cuda")
for _ in range(2):
    product(inputs, weight.detach())
    weight.sum().backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def record(thin_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Record:
    """Of two layers; the inputs want a gradient too."""
    return play(PROGRAM, tmp_path_factory.mktemp("work"), thin_python)


def play(text: str, directory: Path, python: Path) -> Record:
    """The record of a program with its work."""
    program = directory / "program.py"
    program.write_text(text, encoding="utf-8")
    options = replace(make_options(), has_work=True)
    job = make_job([str(program)], device=choose_device(), python=python, options=options)
    run = run_job(job, None, stdout_to_stderr=True)
    assert run.exit_code == 0
    return run.processes[0].record


@pytest.fixture(scope="module")
def work(record: Record) -> Work:
    """Of its last step."""
    assert record.work is not None
    return record.work


def test_backward_computes_twice_what_forward_does(record: Record, work: Work) -> None:
    flops: Counter[tuple[str, str]] = Counter()
    for one in work.operations:
        if one.flops:
            flops[record.modules[one.module], one.part] += one.flops * one.num
    product = 2 * BATCH * WIDE * NARROW
    assert flops == {
        ("0", "forward"): product, ("0", "backward"): 2 * product,
        ("2", "forward"): product, ("2", "backward"): 2 * product,
    }  # fmt: skip


def test_elementwise_operations_move_what_they_read_and_write(record: Record, work: Work) -> None:
    (relu,) = [one for one in work.operations if one.name == "aten::relu"]
    assert (record.modules[relu.module], relu.num_bytes) == ("1", 2 * 4 * BATCH * NARROW)


def test_what_crosses_the_link_is_told_apart(work: Work) -> None:
    crossing = [one for one in work.operations if one.link_bytes]
    assert [(one.link_bytes, one.num) for one in crossing] == [(4 * BATCH * WIDE, 1)]


def test_the_optimizer_moves_each_parameter(work: Work) -> None:
    parameters = 4 * (2 * WIDE * NARROW + WIDE + NARROW)
    moved = sum(one.num_bytes * one.num for one in work.operations if one.part == "optimizer")
    assert moved == 3 * parameters  # the parameter read and written, its gradient read


def test_the_tree_names_classes_and_what_holds_them(record: Record, work: Work) -> None:
    tree = {record.modules[node.module]: node for node in work.tree}
    assert (tree[""].kind, tree[""].num_children) == ("Sequential", 3)
    assert (tree["2"].kind, tree["2"].held_by) == ("Linear", "Sequential")
    assert tree["2"].num_parameters == NARROW * WIDE + WIDE


def test_a_custom_operation_is_what_it_does_inside(thin_python: Path, tmp_path: Path) -> None:
    found = play(CUSTOM, tmp_path, thin_python).work
    assert found is not None
    by_name = {one.name: one for one in found.operations}
    assert by_name["aten::mm"].flops == 2 * BATCH * WIDE * NARROW
    assert by_name["aten::relu"].num_bytes == 2 * 4 * BATCH * WIDE
    assert "tests::product" not in by_name
