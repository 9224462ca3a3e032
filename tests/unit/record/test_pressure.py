"""Steps and requests are counted whole, in bounded memory."""

from __future__ import annotations

import itertools
import sys
import types
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.ground.errors import SpecError
from ullage.log.durations import bin_of
from ullage.players.inside.patches import Patches
from ullage.players.inside.pressure.gauge import PressureGauge
from ullage.players.inside.pressure.generation import count_new_tokens, watch_generation
from ullage.players.inside.pressure.request_log import (
    MAX_NAMES,
    MAX_POINTS,
    MAX_REQUESTS,
    Request,
    RequestLog,
)
from ullage.players.inside.pressure.step_windows import NUM_RECENT, Level, StepWindows

STEP = st.tuples(st.floats(1e-6, 1e3), *[st.integers(0, 9)] * 5)


@given(st.lists(STEP, max_size=120))
def test_windows_hold_every_step(steps: list[tuple[float, int, int, int, int, int]]) -> None:
    windows = StepWindows(max_windows=8)
    for number, (seconds, *level) in enumerate(steps):
        windows.add(float(number), seconds, Level(*level))
    rows = windows.window_rows()
    assert len(rows) <= 8 and windows.num_steps == len(steps)
    times: dict[int, Counter[int]] = {place: Counter() for place in range(len(rows))}
    for place, number, count in windows.window_time_rows():
        times[place][number] += count
    ends = list(itertools.accumulate((row[1] for row in rows), initial=0))
    assert ends[-1] == len(steps)
    for place, (row, begin, end) in enumerate(zip(rows, ends, ends[1:], strict=False)):
        columns = list(zip(*steps[begin:end], strict=True))
        assert row[:3] == [begin, end - begin, float(begin)]
        assert row[3] == pytest.approx(sum(columns[0]))
        assert row[4:] == [*map(max, columns[1:4]), *map(sum, columns[4:])]
        assert times[place] == Counter(map(bin_of, columns[0]))
    all_rows = windows.time_rows()
    for column, chosen in (
        (1, steps), (2, steps[-NUM_RECENT:]), (3, [step for step in steps if step[4]]),
        (4, [step for step in steps if step[5]]),
    ):  # fmt: skip
        counted = Counter({row[0]: row[column] for row in all_rows if row[column]})
        assert counted == Counter(bin_of(step[0]) for step in chosen)


def test_a_day_of_steps_is_bounded_and_the_last_ones_are_counted_by_themselves() -> None:
    windows, level = StepWindows(), Level(1, 2, 0, 0, 0)
    for number in range(100_000):
        windows.add(number, 0.1 if number < 99_900 else 0.2, level)
    assert 32 <= len(windows.window_rows()) <= 64
    assert [row[1:3] for row in windows.time_rows()] == [[99_900, NUM_RECENT - 100], [100, 100]]


def test_requests_are_bounded_and_all_are_counted() -> None:
    log = RequestLog()
    for number in range(2 * MAX_REQUESTS):
        request = Request(f"name {number % (2 * MAX_NAMES)}")
        log.begin(request, number, 10)
        log.end(request, number + 0.5, 20, has_failed=False)
    assert len(log.rows()) == MAX_REQUESTS
    assert log.num_requests == 2 * MAX_REQUESTS == sum(row[2] for row in log.time_rows())
    assert len({row[0] for row in log.time_rows()}) == MAX_NAMES + 1
    assert {row[1] for row in log.time_rows()} == {bin_of(0.5)}


def test_a_request_within_another_is_not_beside_it() -> None:
    log = RequestLog()
    outer = Request("chat")
    inner, other = Request("generate", around=outer), Request("chat")
    log.begin(outer, 0, 0)
    log.begin(inner, 0, 0)
    assert (outer.num_beside, inner.num_beside) == (0, 0)
    log.begin(other, 0, 0)
    assert (outer.num_beside, inner.num_beside, other.num_beside) == (1, 1, 1)


def test_the_growth_is_that_of_the_longest_request_that_was_alone() -> None:
    log = RequestLog()
    for num_calls in (3, 1000, 5):
        request = Request("chat")
        log.begin(request, 0, 0)
        for call in range(1, num_calls + 1):
            request.note_call(100 + 7 * call)
        log.end(request, 1, 0, has_failed=False)
    rows = log.growth_rows()
    assert len(rows) <= MAX_POINTS + 1
    assert rows[0] == [1, 107] and rows[-1] == [1000, 7100]
    assert all(size == 100 + 7 * call for call, size in rows)


class Machine:
    """A device whose level a test sets; a look takes its peak, as the hook and the counters do."""

    def __init__(self) -> None:
        self.current = self.peak = self.retries = self.frees = 0
        cuda = types.SimpleNamespace(is_initialized=lambda: True, device_count=lambda: 1)
        self.errors: list[Exception] = []
        self.is_on = True
        self.gauge = PressureGauge(
            types.SimpleNamespace(cuda=cuda), self,  # type: ignore[arg-type]
            take_peak=self.take, is_on=lambda: self.is_on, on_error=self.errors.append,
        )  # fmt: skip

    def reach(self, peak: int, then: int) -> None:
        self.peak, self.current = max(self.peak, peak), then

    def take(self, _device: int) -> tuple[int, int]:
        peak, self.peak = self.peak, 0
        return peak, peak

    def latest(self, _device: int) -> dict[str, Any]:
        level = {"all": {"current": self.current}}
        return {"allocated_bytes": level, "reserved_bytes": level, "inactive_split_bytes": level}

    def count_pressure(self, _device: int, _stats: object) -> tuple[int, int]:
        return self.retries, self.frees

    def step(self) -> None:
        self.gauge.end_step(1)


def test_a_look_at_a_request_takes_nothing_from_the_peak_of_the_step() -> None:
    machine = Machine()
    machine.reach(90, 10)
    with machine.gauge.request("chat"):
        machine.reach(50, 20)
        with machine.gauge.request("inner"):
            machine.reach(30, 25)
        machine.retries, machine.frees = 1, 4
        machine.step()
        machine.reach(40, 5)
    machine.step()
    fields = machine.gauge.pressure()
    assert [row[4:] for row in fields["windows"]] == [[90, 90, 25, 1, 4], [40, 40, 5, 0, 0]]
    inner, chat = fields["last_requests"]
    assert (inner[0], *inner[3:6]) == ("inner", 20, 25, 30)
    assert (chat[0], *chat[3:6]) == ("chat", 10, 5, 50)
    assert chat[6:10] == [1, None, 25, 25], "one step ended within it"
    assert machine.errors == []


def test_what_fails_in_us_is_noted_and_not_seen_by_the_program() -> None:
    machine = Machine()
    machine.reach(1, 1)
    with machine.gauge.request("chat"):
        machine.latest = {}.__getitem__  # type: ignore[method-assign]
    assert [type(error) for error in machine.errors] == [KeyError]
    machine.is_on = False
    with machine.gauge.request("after the recording"):
        pass
    assert machine.gauge.pressure()["num_requests"] == 1
    with pytest.raises(SpecError, match="not a name of a request"), machine.gauge.request(5):  # type: ignore[arg-type]
        pass
    with pytest.raises(SpecError, match="num_tokens=-1"):
        Request("chat").num_tokens = -1


class Shaped:
    """What has a shape."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape


DECODER = types.SimpleNamespace(config=types.SimpleNamespace(is_encoder_decoder=False))
BOTH = types.SimpleNamespace(config=types.SimpleNamespace(is_encoder_decoder=True))


@pytest.mark.parametrize(
    ("model", "result", "arguments", "kwargs", "tokens"),
    [
        (DECODER, Shaped(2, 9), (Shaped(2, 5),), {}, 8),
        (DECODER, Shaped(2, 9), (), {"input_ids": Shaped(2, 5)}, 8),
        (DECODER, Shaped(6, 9), (), {"inputs": Shaped(2, 5)}, 24),
        (DECODER, Shaped(2, 9), (), {"inputs_embeds": Shaped(2, 5, 64)}, 18),
        (DECODER, types.SimpleNamespace(sequences=Shaped(1, 9)), (Shaped(1, 9),), {}, 0),
        (BOTH, Shaped(2, 9), (Shaped(2, 100),), {}, 16),
        (BOTH, Shaped(2, 9), (), {"decoder_input_ids": Shaped(2, 4)}, 10),
        (DECODER, "a text", (Shaped(2, 5),), {}, None),
    ],
)
def test_new_tokens_are_what_is_longer_than_the_prompt(
    model: Any, result: Any, arguments: tuple[Any, ...], kwargs: dict[str, Any], tokens: int | None
) -> None:
    assert count_new_tokens(model, result, arguments, kwargs) == tokens


def test_generate_is_a_request_until_the_patches_are_undone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class GenerationMixin:
        config = DECODER.config

        def generate(self, ids: Shaped, *, more: int) -> Shaped:
            return Shaped(ids.shape[0], ids.shape[1] + more)

    generate = GenerationMixin.generate
    module = types.ModuleType("transformers.generation.utils")
    module.GenerationMixin = GenerationMixin  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    machine, patches = Machine(), Patches()
    machine.gauge.install(patches)
    assert GenerationMixin().generate(Shaped(3, 4), more=2).shape == (3, 6)
    assert patches.undo() == []
    assert GenerationMixin.generate is generate
    GenerationMixin().generate(Shaped(3, 4), more=2)
    (row,) = machine.gauge.pressure()["last_requests"]
    assert (row[0], row[7]) == ("generate", 6)


def test_where_transformers_never_comes_nothing_is_left_waiting_for_it() -> None:
    before, patches = list(sys.meta_path), Patches()
    watch_generation(patches, Machine().gauge.request)
    patches.undo()
    assert sys.meta_path == before
