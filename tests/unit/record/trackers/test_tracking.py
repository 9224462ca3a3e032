"""What trackers are told of the steps, and when; and that a tracker harms nobody."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from ullage.callbacks.training_recording import TrainingRecording
from ullage.errors import SpecError
from ullage.record.patches import Patches
from ullage.record.trackers.background import MAX_QUEUED, Background
from ullage.record.trackers.choice import NAMES, open_trackers, parse_choice
from ullage.record.trackers.figures import StepFigures
from ullage.record.trackers.tracking import Tracking

GIB = 2**30
WAIT_S = 60.0


class Listener:
    """An object of a user's own, which can be told; it keeps what it hears."""

    def __init__(self, error: Exception | None = None) -> None:
        self.heard: list[tuple[int, Mapping[str, float]]] = []
        self.error = error

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Called with each report."""
        if self.error is not None:
            raise self.error
        self.heard.append((step, values))


class Clock:
    """Seconds that only the test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def track(torch: Any, *targets: object) -> tuple[Tracking, Clock, list[str]]:
    """A tracking of these targets, with its clock and what it has said."""
    clock, lines = Clock(), list[str]()
    trackers = open_trackers(parse_choice(targets), Patches())
    return Tracking(torch, trackers, clock=clock, say=lines.append), clock, lines


def test_the_first_step_is_told_at_once_and_the_next_after_a_second(torch: Any) -> None:
    listener = Listener()
    tracking, clock, lines = track(torch, listener)
    for peak, seconds in ((4, 0.2), (9, 0.2), (5, 0.6)):
        tracking.note_step(peak * GIB, (peak + 1) * GIB, seconds)
        clock.now_s += 0.5
    ((_, first), (step, values)) = listener.heard
    assert first["ullage/allocated_peak_bytes"] == 4 * GIB
    assert step == 3
    assert values == {
        "ullage/allocated_peak_bytes": 9 * GIB,  # of the steps since the last report
        "ullage/reserved_peak_bytes": 10 * GIB,
        "ullage/fragmented_bytes": 2 * GIB,  # of the device with the most
        "ullage/headroom_bytes": (10 + 60 - 9) * GIB,
        "ullage/step_seconds": pytest.approx(0.4),
        "ullage/alloc_retries": 4,
        "ullage/ooms": 1,
    }
    assert lines == []


def test_the_last_steps_are_told_at_the_end(torch: Any) -> None:
    listener = Listener()
    tracking, _, _ = track(torch, listener)
    for _ in range(5):
        tracking.note_step(GIB, GIB, 0.1)
    tracking.end()
    tracking.end()
    assert [step for step, _ in listener.heard] == [1, 5]


def test_a_tracker_that_fails_is_said_once_and_the_others_go_on(torch: Any) -> None:
    secret = "401 for https://ada:hunter2@host/api?key=s3cret\nand more"
    broken, listener = Listener(ConnectionError(secret)), Listener()
    tracking, clock, lines = track(torch, broken, listener)
    for _ in range(3):
        tracking.note_step(GIB, GIB, 0.1)
        clock.now_s += 2.0
    tracking.end()
    assert len(listener.heard) == 3
    assert lines == [
        "Listener is told of no more steps: ConnectionError: 401 for https://...host/api?..."
    ]


def test_a_torch_without_the_counters_ends_it(torch: Any) -> None:
    del torch.cuda.mem_get_info
    listener = Listener()
    tracking, clock, lines = track(torch, listener)
    for _ in range(3):
        tracking.note_step(GIB, GIB, 0.1)
        clock.now_s += 2.0
    tracking.end()
    assert listener.heard == []
    (line,) = lines
    assert "AttributeError" in line


def test_it_is_said_that_no_run_was_active(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    for name in ("mlflow", "wandb", "comet_ml"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    tracking, _, lines = track(torch, "mlflow", "wandb")
    tracking.end()
    assert lines == []  # there were no steps
    tracking, _, lines = track(torch, "mlflow", "wandb")
    tracking.note_step(GIB, GIB, 0.1)
    tracking.end()
    assert lines == [
        "no tracker was told of the steps: there was no active run (MLflow, Weights & Biases)"
    ]
    monkeypatch.setenv("RANK", "1")  # the first rank alone has a run, mostly
    tracking, _, lines = track(torch, "mlflow")
    tracking.note_step(GIB, GIB, 0.1)
    tracking.end()
    assert lines == []


def test_auto_is_each_of_them_and_an_object_stands_for_its_library() -> None:
    class Writer:
        def add_scalar(self, *_: object) -> None:
            """As a SummaryWriter."""

    writer, own = Writer(), Listener()
    assert parse_choice("auto") == NAMES
    assert parse_choice(None) == ()
    assert parse_choice(own) == (own,)
    choice = parse_choice(["auto", "mlflow", writer, own])
    assert choice == ("mlflow", "wandb", "neptune", "comet", writer, own)


@pytest.mark.parametrize(
    ("trackers", "message"),
    [
        ("wandbee", "there is no tracker 'wandbee'; expected one of 'auto', 'mlflow', 'wandb'"),
        (["mlflow", 7], "a int is no tracker; expected a name"),
    ],
)
def test_what_is_no_tracker_is_refused(trackers: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_choice(trackers)


def test_the_callbacks_take_trackers_and_refuse_what_is_none() -> None:
    recording = TrainingRecording(trackers=["auto", Listener()])
    assert recording.path is None
    with pytest.raises(SpecError, match="there is no tracker 'wandbee'"):
        TrainingRecording(trackers="wandbee")


def test_a_call_in_the_background_is_not_waited_for() -> None:
    background, gate, calls = Background(), threading.Event(), []

    def wait() -> None:
        gate.wait(WAIT_S)
        calls.append(threading.current_thread())

    background.hand(wait)
    background.hand(wait)
    assert calls == []
    gate.set()
    background.end()
    assert len(calls) == 2
    assert threading.current_thread() not in calls


def test_an_error_in_the_background_comes_back_with_the_next_call() -> None:
    background = Background()

    def fail() -> None:
        raise ValueError("refused")

    background.hand(fail)
    thread = background._thread
    assert thread is not None
    thread.join(WAIT_S)
    with pytest.raises(ValueError, match="refused"):
        background.hand(fail)


def test_the_background_has_bounds_of_calls_and_of_time() -> None:
    background, gate = Background(end_s=0.05), threading.Event()
    hand: Callable[[], None] = lambda: background.hand(lambda: gate.wait(WAIT_S))  # noqa: E731
    with pytest.raises(TimeoutError, match=f"{MAX_QUEUED} calls wait"):
        for _ in range(MAX_QUEUED + 2):
            hand()
    with pytest.raises(TimeoutError, match="not everything was delivered"):
        background.end()
    gate.set()


def test_figures_have_names_with_units(make_figures: Callable[..., StepFigures]) -> None:
    figures = make_figures()
    assert figures.values()["headroom_bytes"] == 60 * GIB
    values = figures.values("gib", GIB)
    assert values["headroom_gib"] == 60
    assert values["step_seconds"] == 0.5
    assert len(values) == len(figures.values()) == 7
