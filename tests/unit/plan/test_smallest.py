"""The smallest GPU: which are tried, and what is said of those that are too small."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from ullage.explain.verdict import Verdict
from ullage.facts.gpus.catalog import find_gpu, load_catalog
from ullage.ground.units import GIB
from ullage.search.costs.measure import RunRequest
from ullage.search.sizes.smallest import find_smallest

CATALOG = [find_gpu(slug) for slug in ("h100-80gb", "t4", "gtx-1080", "rtx-3080-10gb", "rtx-2060")]
# No torch of today has code for it.
TOO_OLD = (6, 1)
LEAN: Any = object()


class Machine:
    """Runs a program that needs so much as it is, and less under a plan that some GPUs refuse."""

    def __init__(self, need_gib: float, lean_gib: float, refused: Sequence[str] = ()) -> None:
        self.tried: list[str] = []
        self._needs = {None: need_gib * GIB, LEAN: lean_gib * GIB}
        self._refused = refused

    def run(self, wanted: Sequence[RunRequest]) -> list[Any]:
        """Each run."""
        return [self._one(one) for one in wanted]

    def _one(self, wanted: RunRequest) -> Any:
        need, gpu = int(self._needs[wanted.plan]), wanted.gpu
        verdict, reason = Verdict.FITS, ""
        if gpu is not None:
            self.tried.append(gpu.slug)
            if gpu.compute_capability <= TOO_OLD:
                verdict, reason = Verdict.FAILED, "no kernel image"
            elif wanted.plan is LEAN and gpu.slug in self._refused:
                verdict, reason = Verdict.FAILED, "the plan does not go"
            elif need + gpu.context_high_bytes > gpu.total_bytes:
                verdict, reason = Verdict.OUT_OF_MEMORY, "no room"
        totals = SimpleNamespace(peak_allocated_bytes=need, non_torch_bytes=0)
        device = SimpleNamespace(totals=totals, peak_used_bytes=need)
        return SimpleNamespace(verdict=verdict, reason=reason, devices=[device])


def test_the_first_by_memory_that_fits_is_the_answer() -> None:
    machine = Machine(20, 7.4)
    found = find_smallest(machine.run, {"lean": LEAN, "as it is": None}, CATALOG)
    assert found is not None
    assert (found.gpu, found.name, found.used_bytes) == ("rtx-3080-10gb", "lean", int(7.4 * GIB))
    assert found.too_small == {"gtx-1080": "no kernel image"}


def test_what_is_far_too_small_is_not_tried_and_what_is_larger_neither() -> None:
    machine = Machine(20, 7.4)
    find_smallest(machine.run, {"lean": LEAN}, CATALOG)
    assert machine.tried == ["gtx-1080", "rtx-3080-10gb"]


def test_what_needs_less_on_another_generation_is_found() -> None:
    """7.7 GiB here, and a GPU with 7.93 GiB of which the context takes some."""
    machine = Machine(20, 7.7)
    new = [find_gpu("rtx-2070"), *CATALOG]
    find_smallest(machine.run, {"lean": LEAN}, new)
    assert machine.tried[0] == "rtx-2070"


def test_a_gpu_that_refuses_one_plan_may_take_the_next() -> None:
    machine = Machine(9, 7.4, refused=["rtx-3080-10gb"])
    found = find_smallest(machine.run, {"lean": LEAN, "as it is": None}, CATALOG)
    assert found is not None
    assert (found.gpu, found.name) == ("rtx-3080-10gb", "as it is")


def test_a_program_larger_than_every_gpu_has_none() -> None:
    assert find_smallest(Machine(2000, 1000).run, {"lean": LEAN}, load_catalog()) is None
