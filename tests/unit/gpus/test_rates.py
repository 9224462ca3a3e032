"""Rates that were measured: what follows from measurements, and what a file has to be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ullage.errors import SpecError
from ullage.gpus.rates import Rates, Sample, Speed, default_path, fit_speed, stored_rates

STATED = 1e12


@pytest.fixture
def rates() -> Rates:
    """Those of an H100, each kind of work with another share."""
    return Rates(
        gpu="h100-80gb",
        device="NVIDIA H100 80GB HBM3",
        driver="580.1",
        torch="2.11.0",
        date="2026-11-22",
        matmul={"bfloat16": Speed(0.75, 2e-6)},
        attention={"forward": Speed(0.5), "backward": Speed(0.25)},
        memory=Speed(0.9, 1e-6),
        to_device=Speed(0.85),
        to_host=Speed(0.8),
        peers=None,
        launch_s=6e-6,
        skipped={"peers": "there is one GPU only"},
    )


def test_a_rate_and_a_start_are_found_again() -> None:
    samples = [Sample(work, 3e-6 + work / (0.6 * STATED)) for work in (1e6, 1e7, 1e8, 1e9)]
    speed = fit_speed(samples, STATED)
    assert speed.frac == pytest.approx(0.6)
    assert speed.start_s == pytest.approx(3e-6)
    assert speed.seconds(2e9, STATED) == pytest.approx(3e-6 + 2e9 / (0.6 * STATED))


def test_small_work_that_is_faster_gives_no_time_below_zero() -> None:
    """As where it stays in a cache: the best line would begin before it is started."""
    samples = [Sample(1e6, 0.5e-6), Sample(1e8, 1e-4), Sample(1e9, 1e-3)]
    speed = fit_speed(samples, STATED)
    assert speed.start_s == 0
    assert 0.9 < speed.frac < 2


def test_one_size_gives_a_rate_alone() -> None:
    assert fit_speed([Sample(1e9, 2e-3), Sample(1e9, 2e-3)], STATED) == Speed(pytest.approx(0.5))


def test_work_that_takes_no_longer_tells_of_no_rate() -> None:
    with pytest.raises(SpecError, match="larger work took no longer than smaller"):
        fit_speed([Sample(1e6, 1e-3), Sample(1e9, 1e-4), Sample(1e8, 1e-3)], STATED)
    with pytest.raises(SpecError, match="nothing was measured"):
        fit_speed([], STATED)


def test_a_file_is_read_as_it_was_written(rates: Rates, tmp_path: Path) -> None:
    path = tmp_path / "rates.json"
    path.write_text(json.dumps(rates.document))
    read = Rates.load(path)
    assert read.document == rates.document
    assert read.source == str(path)


def drop(name: str) -> Callable[[dict[str, Any]], object]:
    """Takes a field out."""
    return lambda document: document.pop(name)


def put(name: str, value: Any) -> Callable[[dict[str, Any]], object]:
    """Sets a field."""
    return lambda document: document.update({name: value})


DAMAGES = {
    "schema": (put("schema", "ullage.rates/2"), "its schema is 'ullage.rates/2'"),
    "unknown": (put("note", "mine"), "the file has 'note', which is not known"),
    "missing": (drop("memory"), "the file lacks 'memory'"),
    "share": (
        put("memory", {"frac": 300, "start_s": 0.0}),
        "memory.frac is 300.0; expected a share",
    ),
    "zero": (put("to_host", {"frac": 0, "start_s": 0.0}), "to_host.frac is 0"),
    "time": (put("launch_s", -1.0), "launch_s is -1.0; expected a number, 0 or more"),
    "text": (put("gpu", 5), "gpu is 5; expected str"),
    "not a speed": (put("peers", 0.5), "peers is 0.5; expected dict"),
    "not a number": (put("launch_s", float("nan")), "launch_s is nan"),
}


@pytest.mark.parametrize(("damage", "said"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_refused(
    rates: Rates, tmp_path: Path, damage: Callable[[dict[str, Any]], object], said: str
) -> None:
    document = json.loads(json.dumps(rates.document))
    damage(document)
    path = tmp_path / "rates.json"
    path.write_text(json.dumps(document))
    with pytest.raises(SpecError) as caught:
        Rates.load(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value) and "`ullage calibrate`" in str(caught.value)


@pytest.mark.parametrize("text", ["[1]", "{", ""])
def test_what_is_no_file_of_rates_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rates.json"
    path.write_text(text)
    with pytest.raises(SpecError, match="make it with `ullage calibrate`"):
        Rates.load(path)
    with pytest.raises(SpecError, match="cannot be read"):
        Rates.load(tmp_path / "nowhere.json")


def test_rates_are_kept_for_each_gpu(
    rates: Rates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert stored_rates("h100-80gb") is None
    path = default_path("h100-80gb")
    assert path == tmp_path / "ullage" / "rates" / "h100-80gb.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(rates.document))
    found = stored_rates("h100-80gb")
    assert found is not None and found.launch_s == rates.launch_s
    assert stored_rates("t4") is None
