"""What several runs say together: the line through their peaks, what fits, which GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ullage.answers.text import render
from ullage.explain.compare.sweep import Line, SweepReport
from ullage.explain.verdict import ExitCode
from ullage.facts.gpus.catalog import Gpu
from ullage.verbs.run.sweep_text import sweep_blocks

SweepOf = Callable[..., SweepReport]
OOM = {"kind": "exception", "exception": "torch.OutOfMemoryError", "message": "CUDA out of memory.",
       "where": None, "code": 1}  # fmt: skip
FAILED = OOM | {"exception": "builtins.ValueError", "message": "no"}


def only_line(report: SweepReport) -> Line:
    (line,) = report.lines
    return line


# The fixture only builds.
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(fixed=st.integers(1, 200), slope=st.integers(0, 30), start=st.integers(1, 5))
def test_a_straight_line_is_found_to_the_byte(
    sweep_of: SweepOf, fixed: int, slope: int, start: int
) -> None:
    values = [str(start * factor) for factor in (4, 1, 2)]
    line = only_line(sweep_of({"batch": values}, lambda x: int(fixed + slope * x)))
    assert (line.fixed_bytes, line.bytes_per_unit, line.deviation_bytes) == (fixed, slope, 0)
    assert (line.variable, line.held, line.gpu) == ("batch", (), "small")
    assert (line.num_points, line.from_value) == (3, start)


def test_a_peak_that_moves_elsewhere_gives_the_line_of_the_large_values(sweep_of: SweepOf) -> None:
    report = sweep_of({"batch": ["1", "2", "4", "8", "16"]}, lambda x: int(max(300, 100 + 40 * x)))
    line = only_line(report)
    assert (line.fixed_bytes, line.bytes_per_unit, line.deviation_bytes) == (100, 40, 0)
    assert (line.from_value, line.num_points) == (8, 2)


def test_small_deviations_stay_on_the_line_and_are_told(sweep_of: SweepOf) -> None:
    wobble = {1: 0, 2: 2, 3: 0, 4: 2}
    line = only_line(
        sweep_of({"batch": ["1", "2", "3", "4"]}, lambda x: int(100 + 100 * x + wobble[int(x)]))
    )
    # By hand: least squares of (0, 2, 0, 2) over 1..4 is 0.4 x + 0, the farthest point 1.2 off.
    assert (line.fixed_bytes, line.bytes_per_unit, line.deviation_bytes) == (100, 100, 1)
    assert line.num_points == 4


def test_runs_that_do_not_fit_are_not_on_the_line_and_bound_the_forecast(sweep_of: SweepOf) -> None:
    def peak(x: float) -> int | dict[str, object]:
        return int(100 + 100 * x) if x <= 4 else OOM

    report = sweep_of({"batch": ["1", "2", "4", "6"]}, peak)
    assert only_line(report).num_points == 3
    assert report.largest("small") == ((("batch", "4"),),)
    assert only_line(report).forecast == 5, "6 was tried and does not fit"
    assert report.exit_code is ExitCode.FINE


def test_the_forecast_is_what_fits_and_one_more_does_not(sweep_of: SweepOf) -> None:
    # Of 1000 bytes the context takes 120: 100 + 100 x <= 880 up to 7.8.
    report = sweep_of({"batch": ["1", "2", "4"]}, lambda x: int(100 + 100 * x))
    assert only_line(report).forecast == 7
    tried = sweep_of({"batch": ["1", "2", "7"]}, lambda x: int(100 + 100 * x))
    assert only_line(tried).forecast is None, "it says nothing that was not tried"
    fractions = sweep_of({"batch": ["0.5", "1"]}, lambda x: int(100 + 100 * x))
    assert only_line(fractions).forecast is None, "there is no next value"
    endless = sweep_of({"batch": ["1", "2"]}, lambda x: int(100 + 100 * x), is_unlimited=True)
    assert only_line(endless).forecast is None


def test_two_variables_have_a_line_for_each_setting_of_the_other_and_one_for_the_product(
    sweep_of: SweepOf,
) -> None:
    variables = {"batch": ["1", "2"], "seq": ["10", "20"]}
    report = sweep_of(variables, lambda batch, seq: int(50 + 3 * batch * seq))
    found = {(line.variable, line.held): line for line in report.lines}
    assert found["batch", (("seq", "20"),)].bytes_per_unit == 60
    assert found["seq", (("batch", "2"),)].bytes_per_unit == 6
    product = found["batch*seq", ()]
    assert (product.fixed_bytes, product.bytes_per_unit, product.num_points) == (50, 3, 4)
    assert len(report.lines) == 5
    apart = sweep_of(variables, lambda batch, seq: int(50 + 100 * batch + 3 * seq))
    assert "batch*seq" not in {line.variable for line in apart.lines}, "it does not follow it"


def test_values_that_are_not_numbers_have_no_line(sweep_of: SweepOf) -> None:
    for values in (["sgd", "adamw"], ["1", "inf"], ["1", "x"], ["3"], ["1", "1.0"]):
        assert sweep_of({"optimizer": values}, lambda _x: 100).lines == ()


def test_the_largest_of_several_variables_are_those_that_none_exceeds(sweep_of: SweepOf) -> None:
    def peak(batch: float, seq: float) -> int | dict[str, object]:
        return int(batch * seq) if batch * seq <= 40 else OOM

    report = sweep_of({"batch": ["1", "2", "4"], "seq": ["10", "20", "40"]}, peak)
    found = {tuple(value for _, value in values) for values in report.largest("small")}
    assert found == {("1", "40"), ("2", "20"), ("4", "10")}


def test_the_smallest_gpu_is_that_on_which_everything_fits(
    sweep_of: SweepOf, small_gpu: Gpu
) -> None:
    gpus = [
        replace(small_gpu, slug=slug, total_bytes=total, total_low_bytes=total)
        for slug, total in (("large", 4000), ("middle", 2000), ("small", 1000))
    ]
    everywhere = sweep_of({}, lambda: 500, gpus=gpus)
    assert everywhere.smallest_gpu == "small" and len(everywhere.points) == 3
    nowhere = sweep_of({}, lambda: OOM, gpus=gpus)
    assert (nowhere.smallest_gpu, nowhere.exit_code) == (None, ExitCode.ANSWER_IS_NO)
    alone = sweep_of({"batch": ["1", "2"]}, lambda x: int(x))
    assert alone.smallest_gpu is None, "there is nothing to choose from"


def test_a_program_that_fails_is_not_an_answer(sweep_of: SweepOf) -> None:
    report = sweep_of({"batch": ["1", "2"]}, lambda x: 100 if x < 2 else FAILED)
    assert report.exit_code is ExitCode.PROGRAM_FAILED


def test_the_forecast_goes_no_farther_than_twice_what_was_run(sweep_of: SweepOf) -> None:
    line = only_line(sweep_of({"batch": ("1", "2", "4")}, lambda batch: int(10 + batch)))
    assert (line.forecast, line.is_forecast_capped) == (8, True)
    text = render(sweep_blocks(sweep_of({"batch": ("1", "2", "4")}, lambda batch: int(10 + batch))))
    assert text.startswith("largest that fits: batch=4 (run); the linear fit predicts 8 or ")
