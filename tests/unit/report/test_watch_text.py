"""The text of `ullage watch`: bars add up, lines fit, durations are words."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from ullage.ground.protocol.job import Job, JobDevice
from ullage.operate.watch.alerts.board import Alerts
from ullage.operate.watch.history import History
from ullage.operate.watch.sample import DeviceSample, Note, ProcessKind, ProcessSample, Sample
from ullage.operate.watch.view import GpuView, View, view
from ullage.verbs.watch.text import print_watch
from ullage.verbs.watch.text_parts import (
    draw_memory,
    draw_spark,
    join_spans,
    pieces_of,
    say_duration,
)

GIB = 2**30
SIZE = st.integers(0, 100 * GIB)


def print_all(machine: View, history: History, width: int = 80) -> str:
    """What is printed, without alerts."""
    console = Console(width=width, color_system=None, file=io.StringIO())
    print_watch(machine, history, Alerts(), console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def gpu(total: int, used: int, allocated: int, reserved: int, split: int) -> GpuView:
    """A GPU with one job."""
    device = DeviceSample(
        0, "GPU-0", "H100", total_bytes=total, used_bytes=used, free_bytes=max(total - used, 0)
    )
    part = JobDevice(0, "GPU-0", allocated, reserved, allocated, split, 0, 0, 0, 0, 0, total)
    job = Job(1, 0.0, 0.0, "train.py", (part,))
    (seen,) = view(Sample(0.0, "host", (device,), (job,))).gpus
    return seen


@given(st.integers(1, 100 * GIB), SIZE, SIZE, SIZE, SIZE, st.integers(5, 200))
def test_the_pieces_of_a_bar_sum_to_the_gpu(
    total: int, used: int, allocated: int, reserved: int, split: int, width: int
) -> None:
    pieces = pieces_of(gpu(total, used, allocated, reserved, split))
    assert sum(piece.num_bytes for piece in pieces) == total
    assert all(piece.num_bytes >= 0 for piece in pieces)
    assert join_spans(draw_memory(pieces, width, is_ascii=False)).cell_len == width


def test_each_piece_is_what_it_is_called() -> None:
    pieces = pieces_of(gpu(80 * GIB, 40 * GIB, 20 * GIB, 30 * GIB, 4 * GIB))
    sizes = {piece.label: piece.num_bytes // GIB for piece in pieces}
    assert sizes == {"allocated": 20, "fragmented": 4, "cached": 6, "other": 10, "free": 40}
    bar = join_spans(draw_memory(pieces, 40, is_ascii=True)).plain
    assert bar == "#" * 10 + "%" * 2 + "=" * 3 + "+" * 5 + "." * 20


def test_a_sparkline_has_a_column_for_each_value() -> None:
    assert draw_spark([0.0, 0.5, 1.0, None, 2.0], 4, is_ascii=True) == "+@ @"
    assert draw_spark([0.0, 0.124, 0.126, 1.0], 9, is_ascii=False) == "▁▁▂█"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (89, "89 s"),
        (120, "2 min"),
        (3599, "1 h"),
        (11_400, "3 h 10 min"),
        (86_400 * 2 + 3600, "2 d 1 h"),
        (1e12, "more than 999 d"),
    ],
)
def test_durations_are_words(seconds: float, text: str) -> None:
    assert say_duration(seconds) == text


def busy_sample(name: str) -> Sample:
    """A machine of which everything is known, with long names."""
    processes = tuple(
        ProcessSample(
            pid, ProcessKind.MPS, GIB, name, "somebody", "8f" * 32, "pod" * 9, "7", sm_frac=1.0
        )
        for pid in range(4_000_000, 4_000_030)
    )
    device = DeviceSample(
        0, "GPU-0", f"NVIDIA {name}", total_bytes=80 * GIB, used_bytes=70 * GIB,
        free_bytes=10 * GIB, gpu_frac=1.0, memory_frac=1.0, temperature_c=100, slowdown_c=90,
        power_w=1200.0, power_limit_w=1200.0, sm_clock_mhz=1980, sm_clock_max_mhz=1980,
        pcie_tx_bytes_per_s=10**10, pcie_rx_bytes_per_s=10**10, ecc_uncorrected=12345,
        throttle_reasons=frozenset({"hw_thermal_slowdown", "sw_power_cap"}), processes=processes,
    )  # fmt: skip
    part = JobDevice(
        0, "GPU-0", 40 * GIB, 50 * GIB, 40 * GIB, 9 * GIB, 45 * GIB, 0, 0, 3, 0, 80 * GIB
    )
    job = Job(4_000_000, 0.0, 0.0, name, (part,), 1023, 1024, "backward", 123_456, 123.4, 77)
    lost = DeviceSample(1, None, None, is_lost=True)
    notes = (Note("power_w", "not supported", (1,)),)
    return Sample(50.0, name, (device, lost), (job,), notes)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("name", ["train.py", "a" * 80, "\x1b[31mred\nline", "[bold]x[/]"])
def test_lines_fit_and_names_cannot_write_on_the_terminal(width: int, name: str) -> None:
    sample = busy_sample(name)
    history = History()
    for turn in range(50):
        history.add(Sample(float(turn), "host", sample.devices))
    text = print_all(view(sample), history, width)
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text
    assert "LOST" in text and "19 more processes, 19.0 GiB" in text
    assert "power_w" in text
    if name == "[bold]x[/]":
        assert name in text


def test_what_is_unknown_is_not_shown_as_a_number() -> None:
    sample = Sample(0.0, "host", (DeviceSample(0, "GPU-0", "H100"),))
    text = print_all(view(sample), History())
    assert "memory unknown" in text
    line = next(line for line in text.splitlines() if line.startswith("GPU 0"))
    assert line.split() == ["GPU", "0", "H100"]


def test_a_silent_job_is_called_so() -> None:
    text = print_all(view(busy_sample("train.py")), History())
    assert "silent for 50 s" in text


def test_joined_words_are_as_text_assembles_them() -> None:
    words = [("GPU 0", "bold"), ("  ", ""), ("", "red"), ("91 °C", "bold red"), ("x", "")]
    assert join_spans(words) == Text.assemble(*words)
