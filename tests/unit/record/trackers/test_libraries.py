"""What each tracker's library is asked: with names, steps and runs by its own conventions.

The libraries are stand-ins here; test_real_libraries.py has the real ones.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ullage.record.patches import Patches
from ullage.record.trackers.choice import open_trackers, parse_choice
from ullage.record.trackers.figures import StepFigures
from ullage.record.trackers.mlflow import MlflowTracker
from ullage.record.trackers.tracker import Tracker

GIB = 2**30
MakeFigures = Callable[..., StepFigures]


def open_tracker(target: object, patches: Patches | None = None) -> Tracker:
    """The only tracker of a choice."""
    (tracker,) = open_trackers(parse_choice([target]), patches or Patches())
    return tracker


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`install("wandb", run=None)`: a module of that name is imported."""

    def make(name: str, **attributes: object) -> Any:
        module = ModuleType(name)
        for key, value in attributes.items():
            setattr(module, key, value)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return make


@pytest.mark.parametrize("name", ["mlflow", "wandb", "tensorboard", "neptune", "comet"])
def test_a_library_that_is_not_imported_has_no_run(
    name: str, make_figures: MakeFigures, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("mlflow", "wandb", "comet_ml", "torch.utils.tensorboard.writer"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    finders, modules = list(sys.meta_path), set(sys.modules)
    tracker = open_tracker(name)
    assert tracker.log(make_figures()) is False
    tracker.end()
    assert sys.meta_path == finders
    assert not {"mlflow", "wandb", "comet_ml", "neptune"} & (set(sys.modules) - modules)


class Mlflow:
    """What MLflow is asked; runs are active one after the other."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, dict[str, tuple[float, int]]]] = []
        self.run: Any = None
        self.error: Exception | None = None

    def make(self, install: Callable[..., Any]) -> None:
        """Puts it among the modules."""
        install(
            "mlflow",
            active_run=lambda: self.run,
            get_tracking_uri=lambda: "file:here",
            MlflowClient=lambda uri: SimpleNamespace(log_batch=self.log_batch, uri=uri),
            entities=SimpleNamespace(Metric=lambda *fields: fields),
        )

    def log_batch(self, run_id: str, metrics: list[tuple[str, float, int, int]]) -> None:
        """A batch of a run."""
        if self.error is not None:
            raise self.error
        now_ms = time.time() * 1000
        assert all(abs(time_ms - now_ms) < 3_600_000 for _, _, time_ms, _ in metrics)
        self.batches.append((run_id, {key: (value, step) for key, value, _, step in metrics}))


def test_mlflow_has_system_metrics_in_megabytes(
    make_figures: MakeFigures, install: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_SYSTEM_METRICS_NODE_ID", raising=False)
    library = Mlflow()
    library.make(install)
    tracker = open_tracker("mlflow")
    assert tracker.log(make_figures()) is False
    library.run = SimpleNamespace(info=SimpleNamespace(run_id="r1"))
    assert tracker.log(make_figures(7, 5)) is True
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_NODE_ID", "node-2")
    assert tracker.log(make_figures(8)) is True
    tracker.end()
    ((run_id, values), (_, of_node)) = library.batches
    assert run_id == "r1"
    assert values["system/ullage_allocated_peak_megabytes"] == (5 * GIB / 1e6, 7)
    assert values["system/ullage_step_seconds"] == (0.5, 7)
    assert of_node["system/node-2/ullage_alloc_retries"] == (3.0, 8)


def test_mlflow_says_later_what_its_server_said(
    make_figures: MakeFigures, install: Callable[..., Any]
) -> None:
    library = Mlflow()
    library.make(install)
    library.error = ConnectionError("no server")
    tracker = MlflowTracker(SimpleNamespace(info=SimpleNamespace(run_id="given")))
    assert tracker.log(make_figures()) is True
    with pytest.raises(ConnectionError, match="no server"):
        tracker.end()


class WandbRun:
    """A run of wandb's: rows of what is logged; those of the program's steps are committed."""

    def __init__(self) -> None:
        self.step = 0
        self.row: dict[str, float] = {}
        self.rows: list[dict[str, float]] = []
        self.defined: list[tuple[str, dict[str, object]]] = []

    def define_metric(self, name: str, **options: object) -> None:
        """As wandb's."""
        self.defined.append((name, options))

    def log(self, values: dict[str, float], *, commit: bool = True) -> None:
        """As wandb's."""
        self.row |= values
        if commit:
            self.rows.append(self.row)
            self.row, self.step = {}, self.step + 1


def test_wandb_figures_join_the_programs_rows(
    make_figures: MakeFigures, install: Callable[..., Any]
) -> None:
    library = install("wandb", run=None)
    tracker = open_tracker("wandb")
    assert tracker.log(make_figures()) is False
    run = library.run = WandbRun()
    for step, peak in ((1, 5), (2, 9), (3, 4)):
        assert tracker.log(make_figures(step, peak)) is True
    tracker.end()
    assert (run.step, run.rows) == (0, []), "the program's own steps are its own"
    run.log({"loss": 1.0})
    tracker.log(make_figures(4, 6))
    tracker.end()
    run.log({"loss": 0.5})
    peaks = [row["ullage/allocated_peak_bytes"] / GIB for row in run.rows]
    assert peaks == [9, 6], "the highest of a row"
    assert [row["ullage/step"] for row in run.rows] == [3, 4]
    assert [row["loss"] for row in run.rows] == [1.0, 0.5]
    assert run.defined == [
        ("ullage/step", {"hidden": True}),
        ("ullage/*", {"step_metric": "ullage/step"}),
        ("ullage/allocated_peak_bytes", {"step_metric": "ullage/step", "summary": "max"}),
        ("ullage/reserved_peak_bytes", {"step_metric": "ullage/step", "summary": "max"}),
    ]


def test_wandb_shared_by_processes_has_a_row_for_each_report(make_figures: MakeFigures) -> None:
    run = WandbRun()
    del run.step
    run.__class__ = type("SharedRun", (WandbRun,), {"__module__": "wandb.run", "step": property()})
    rows: list[dict[str, float]] = []
    run.log = lambda values, **options: rows.append({**values, **options})  # type: ignore[method-assign]
    tracker = open_tracker(run)
    tracker.log(make_figures(1))
    tracker.log(make_figures(2))
    tracker.end()
    assert [row["ullage/step"] for row in rows] == [1, 2]
    assert all("commit" not in row for row in rows)


def test_a_wandb_run_that_has_just_ended_is_no_failure(
    make_figures: MakeFigures, install: Callable[..., Any]
) -> None:
    run = WandbRun()
    library = install("wandb", run=run)
    run.log = lambda *_, **__: end_and_refuse()  # type: ignore[method-assign]

    def end_and_refuse() -> None:
        library.run = None
        raise RuntimeError("the run is finished")

    tracker = open_tracker("wandb")
    tracker.log(make_figures())
    tracker.end()
    library.run = run
    run.log = lambda *_, **__: 1 / 0  # type: ignore[assignment,method-assign,return-value]
    tracker.log(make_figures())
    with pytest.raises(ZeroDivisionError):
        tracker.end()


class SummaryWriter:
    """A writer that keeps its scalars; a closed one has none to write to."""

    def __init__(self, directory: str = "") -> None:
        self.directory = directory
        self.all_writers: dict[str, object] | None = {}
        self.scalars: list[tuple[str, float, int]] = []

    def add_scalar(self, tag: str, value: float, global_step: int) -> None:
        """As TensorBoard's."""
        self.scalars.append((tag, value, global_step))


def test_tensorboard_takes_the_newest_open_writer(
    make_figures: MakeFigures, install: Callable[..., Any]
) -> None:
    class Writer(SummaryWriter):
        pass

    install("torch.utils.tensorboard.writer", SummaryWriter=Writer)
    construct = Writer.__init__
    before = Writer()
    patches = Patches()
    tracker = open_tracker("tensorboard", patches)
    assert tracker.log(make_figures()) is False, "one that was there before is not known"
    first, second, third = Writer("a"), Writer(directory="b"), Writer("c")
    second.all_writers = None
    del third
    gc.collect()
    assert tracker.log(make_figures(7, 5)) is True
    assert ("ullage/allocated_peak_gib", 5.0, 7) in first.scalars
    assert len(first.scalars) == 7
    assert before.scalars == second.scalars == []
    tracker.end()
    assert patches.undo() == []
    assert Writer.__init__ is construct


def test_a_writer_that_is_given_is_taken(make_figures: MakeFigures) -> None:
    writer = SummaryWriter()
    tracker = open_tracker(writer)
    assert tracker.log(make_figures()) is True
    assert {tag for tag, _, _ in writer.scalars} >= {"ullage/headroom_gib", "ullage/step_seconds"}


class NeptuneRun:
    """A run of Neptune's present client, which takes increasing steps alone."""

    __module__ = "neptune_scale.api.run"

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.values: dict[str, float] = {}

    def log_metrics(self, data: dict[str, float], step: float) -> None:
        """As Neptune's."""
        assert not self.steps or step > self.steps[-1], "Neptune ends such a run"
        self.steps.append(step)
        self.values |= data


def test_neptune_steps_go_on_in_a_second_recording(make_figures: MakeFigures) -> None:
    run, other = NeptuneRun(), NeptuneRun()
    for target in (run, run, other):
        tracker = open_tracker(target)
        for step in (1, 2):
            assert tracker.log(make_figures(step)) is True
    assert (run.steps, other.steps) == ([1, 2, 3, 4], [1, 2])
    assert run.values["ullage/allocated_peak_bytes"] == 5 * GIB


def test_neptunes_older_client_has_series(
    make_figures: MakeFigures, install: Callable[..., Any]
) -> None:
    class Series(list[tuple[float, int]]):
        def append(self, value: float, step: int) -> None:  # type: ignore[override]
            super().append((value, step))

    class Run:
        def __init__(self) -> None:
            self.series: dict[str, Series] = {}

        def __getitem__(self, name: str) -> Series:
            return self.series.setdefault(name, Series())

    install("neptune.metadata_containers.run", Run=Run)
    tracker = open_tracker("neptune")
    assert tracker.log(make_figures()) is False
    run = Run()
    tracker.log(make_figures(1))
    tracker.log(make_figures(2))
    assert run.series["ullage/step_seconds"] == [(0.5, 1), (0.5, 2)]


def test_comet_keeps_its_own_step(make_figures: MakeFigures, install: Callable[..., Any]) -> None:
    calls: list[tuple[dict[str, float], dict[str, object]]] = []
    experiment = SimpleNamespace(log_metrics=lambda values, **rest: calls.append((values, rest)))
    state: dict[str, Any] = {"running": None}
    library = install("comet_ml", get_running_experiment=lambda: state["running"])
    tracker = open_tracker("comet")
    assert tracker.log(make_figures()) is False
    state["running"] = experiment
    assert tracker.log(make_figures(7)) is True
    ((values, rest),) = calls
    assert rest == {"prefix": "ullage"}
    assert (values["step"], values["allocated_peak_bytes"]) == (7.0, 5 * GIB)
    del library.get_running_experiment
    library.get_global_experiment = lambda: experiment
    assert tracker.log(make_figures(8)) is True
