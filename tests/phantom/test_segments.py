"""A real program's chain, cut in several ways, each run and seen (benchmarks/plans/chains.py)."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from benchmarks.plans.chain_report import render_segments
from benchmarks.plans.chains import ChainReport, compare_segments
from benchmarks.plans.closed_forms import checkpointed_peak, least_checkpointed_peak

import ullage

pytestmark = [pytest.mark.phantom, pytest.mark.slow]

UNIT = 32 * 2**20
LAYERS = 16

# Each layer keeps its output, and nothing else; the loss's gradient is a tensor.
CHAIN = """
    import torch

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def forward(self, x):
            return x.tanh()

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.chain = torch.nn.Sequential(*(Layer() for _ in range({layers})))
            self.scale = torch.nn.Parameter(torch.ones(1))

        def forward(self, x):
            return (self.chain(x * self.scale) * 1).sum()

    model = Model().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        x = torch.zeros({floats}, device="cuda")
        model(x).backward()
        optimizer.step()
        optimizer.zero_grad()
"""
NO_CHAIN = """
    import torch
    model = torch.nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.zeros(2, 8, device="cuda")).sum().backward()
    optimizer.step()
"""


def write(tmp_path: Path, program: str) -> list[str]:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(program).format(layers=LAYERS, floats=UNIT // 4))
    return [str(path)]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write(tmp_path_factory.mktemp("chain"), CHAIN)


@pytest.fixture(scope="module")
def found(program: list[str], thin_python: Path) -> ChainReport:
    return compare_segments(program, python=str(thin_python), steps=2)


def test_a_chain_of_alike_layers_takes_what_the_closed_forms_say(
    found: ChainReport,
) -> None:
    cuts = {one.name: one for one in found.cuts}
    base = cuts["none"].allocated_bytes
    # The tensors that the formulas leave out are the same in all of them.
    units = {name: (one.allocated_bytes - base) / UNIT + LAYERS for name, one in cuts.items()}
    even = {"uniform, 2": 2, "square root, 4": 4, "uniform, 8": 8, "one each, 16": 16}
    for name, count in even.items():
        assert units[name] == pytest.approx(checkpointed_peak(LAYERS, count), abs=0.1), name
    optimal = cuts["optimal, 4"]
    assert units["optimal, 4"] == pytest.approx(least_checkpointed_peak(LAYERS), abs=0.1)
    assert optimal.lengths != cuts["square root, 4"].lengths and sum(optimal.lengths) == LAYERS


def test_the_plan_that_is_given_takes_what_was_seen(
    found: ChainReport, program: list[str], thin_python: Path
) -> None:
    best = found.best
    assert best is not None and best.plan is not None and not found.failure
    again = ullage.run(program, plan=best.plan, python=str(thin_python), steps=2)
    assert again.devices[0].totals.peak_allocated_bytes == best.allocated_bytes


def test_the_text_has_every_segmentation(found: ChainReport) -> None:
    assert found.path == "chain" and len(found.modules) == LAYERS
    for one in found.cuts:
        assert one.name in render_segments(found, 120)


@pytest.mark.parametrize(
    ("chain", "says"),
    [
        (None, "has no torch.nn.Sequential of 4 modules"),
        ("blocks", "'blocks' is no torch.nn.Sequential"),
    ],
)
def test_a_program_without_a_chain_is_told_so(
    tmp_path: Path, thin_python: Path, chain: str | None, says: str
) -> None:
    with pytest.raises(ullage.SpecError, match=says):
        compare_segments(write(tmp_path, NO_CHAIN), chain, python=str(thin_python))
