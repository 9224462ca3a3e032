"""Published step times: their arithmetic, and how predictions are scored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.time.published.__main__ import read_prediction, read_results, write_results
from benchmarks.time.published.page import render
from benchmarks.time.published.row import (
    Figure,
    Prediction,
    read_figures,
    read_recipes,
    step_seconds,
)
from benchmarks.time.published.score import (
    Comparison,
    compare,
    families,
    pairs,
    rank_correlation,
    score,
)


def make_figure(name: str, seconds: float, settings: str = "", family: str = "models") -> Figure:
    return Figure(
        name=name,
        family=family,
        setting="a setting",
        gpu="a GPU",
        torch="2.9",
        seconds=seconds,
        slower=seconds,
        faster=seconds,
        source="a source",
        model="a model",
        settings={str(place): letter for place, letter in enumerate(settings)},
        note="",
    )


def make_row(
    name: str, published: float, likely: float, settings: str = "", width: float = 0.1
) -> Comparison:
    figure = make_figure(name, published, settings)
    return Comparison(figure, (1 - width) * likely, likely, (1 + width) * likely)


def made(low: float, likely: float, high: float) -> Prediction:
    return Prediction(low, likely, high, "2.9.1", 10.0)


def test_a_figure_becomes_seconds_a_step() -> None:
    assert step_seconds(494, "ms/step", None) == pytest.approx(0.494)
    assert step_seconds(5762, "tokens/s/GPU", 2 * 8192) == pytest.approx(2.8435, rel=1e-4)
    with pytest.raises(ValueError, match="expected ms/step"):
        step_seconds(5762, "tokens/s/GPU", None)


def test_every_row_has_a_recipe_and_a_figure() -> None:
    recipes, figures = list(read_recipes()), list(read_figures())
    names = [recipe.name for recipe in recipes]
    assert names == [figure.name for figure in figures]
    assert len(names) == len(set(names)) == 19
    assert all(0.01 < figure.seconds < 60 and figure.source for figure in figures)
    # Every setting is stated of every row, or pairs would differ in what is missing.
    assert len({tuple(figure.settings) for figure in figures}) == 1


def test_the_published_pairs_follow_from_the_settings() -> None:
    rows = [Comparison(figure, 1, 2, 3) for figure in read_figures()]
    changed = {
        (pair.first.figure.name, pair.second.figure.name): pair.changed for pair in pairs(rows, 1)
    }
    assert changed == {
        ("NaiveBaseline", "LongContextSeq2048"): ("sequence",),
        ("NaiveBaseline", "LowerLR_H200"): ("GPU",),
        ("T1a", "T1b"): ("compile",),
        ("T1b", "T1c"): ("precision",),
        ("T3a", "T3b"): ("compile",),
        ("T3b", "T3c"): ("precision",),
        ("T1a", "T3a"): ("ranks",),
        ("T1b", "T3b"): ("ranks",),
        ("T1c", "T3c"): ("ranks",),
    }


def test_a_recipe_fills_in_its_folders() -> None:
    recipe = next(recipe for recipe in read_recipes() if recipe.name == "nanochat_d20")
    folders = {"programs": "/p", "data": "/d", "repository": "/r"}
    assert recipe.variables(folders) == {"PYTHONPATH": "/p/mychat"}
    words = recipe.arguments(folders)
    assert words[: words.index("--")] == (
        "--gpu", "h100-80gb", "--world-size", "8", "--rank", "0", "--steps", "4",
    )  # fmt: skip


def test_errors_are_relative_and_the_interval_includes_its_ends() -> None:
    row = Comparison(make_figure("a", 2.0), 1.0, 1.5, 2.0)
    assert row.error == pytest.approx(-0.25)
    assert row.is_inside
    assert not Comparison(make_figure("a", 2.01), 1.0, 1.5, 2.0).is_inside


def test_the_score_has_median_ninth_decile_and_coverage() -> None:
    rows = [make_row(f"r{i}", 1.0, 1 + i / 100) for i in range(0, 22, 2)]
    result = score(rows)
    assert result.count == 11
    assert result.median == pytest.approx(0.10)
    assert result.ninth_decile == pytest.approx(0.18)
    # An interval of a tenth on both sides holds 1.0 up to 1.10 (0.99 to 1.21).
    assert result.inside == pytest.approx(6 / 11)


def test_the_rank_correlation_is_of_orders_alone() -> None:
    rising = [make_row(name, i, 100 * i * i) for i, name in enumerate("abcd", 1)]
    assert rank_correlation(rising) == pytest.approx(1)
    falling = [make_row(name, i, 100 - i) for i, name in enumerate("abcd", 1)]
    assert rank_correlation(falling) == pytest.approx(-1)
    # By hand: ranks 1, 2, 3 against 1.5, 1.5, 3.
    tied = [make_row("a", 1, 5), make_row("b", 2, 5), make_row("c", 3, 9)]
    assert rank_correlation(tied) == pytest.approx(1.5 / 3**0.5)
    assert rank_correlation(rising[:2]) is None


def test_pairs_are_all_rows_of_a_model_that_differ_in_so_many_settings() -> None:
    rows = [make_row(word, 1, 1, word) for word in ("aa", "ab", "bb")]
    other = make_row("other", 1, 1, "ac")
    rows.append(replace(other, figure=replace(other.figure, model="another")))
    one = [
        (pair.first.figure.name, pair.second.figure.name, pair.changed) for pair in pairs(rows, 1)
    ]
    assert one == [("aa", "ab", ("1",)), ("ab", "bb", ("0",))]
    assert [pair.changed for pair in pairs(rows, 2)] == [("0", "1")]


def test_a_pair_is_named_right_if_the_order_is_the_published_one() -> None:
    rows = [make_row("a", 2, 3, "a"), make_row("b", 1, 2, "b"), make_row("c", 3, 2.5, "c")]
    assert [pair.is_named_right for pair in pairs(rows, 1)] == [True, False, True]
    equal = [make_row("a", 2, 3, "a"), make_row("b", 1, 3, "b")]
    assert not next(pairs(equal, 1)).is_named_right


def test_rows_without_a_prediction_are_not_scored_but_listed() -> None:
    figures = [make_figure("a", 1.0), make_figure("b", 1.0), make_figure("c", 1.0)]
    failed = Prediction(None, None, None, "", 0.0, "its document states no time; it failed")
    predictions = {"a": made(0.9, 1.0, 1.1), "b": failed}
    assert [row.figure.name for row in compare(figures, predictions)] == ["a"]
    page = render(figures, predictions)
    assert "- `b`: its document states no time; it failed" in page
    assert "- `c`: not run." in page


def test_the_page_states_every_row_and_what_is_met() -> None:
    figures = [
        make_figure("a", 1.0, "a"),
        make_figure("b", 0.5, "b"),
        replace(make_figure("d", 2.0, family="x"), model="another"),
    ]
    predictions = {"a": made(0.9, 1.1, 1.2), "b": made(0.6, 0.7, 0.8), "d": made(1, 2, 3)}
    page = render(figures, predictions)
    assert "median error 10.0%, ninth decile 34.0%" in page
    assert "inside the interval in 67%; of 1 pairs that differ in one setting the faster" in page
    cells = "`b` | a GPU | 2.9 | 2.9.1 | 500.0 | 600.0 | 700.0 | 800.0 | +40.0% | no"
    assert f"| models | {cells} |" in page
    assert "| `a` | `b` | 0 | 0.500 | 0.636 | yes |" in page
    assert list(families(compare(figures, predictions))) == ["models, a GPU", "x, a GPU"]


def test_predictions_are_read_from_a_document_and_kept(tmp_path: Path) -> None:
    kind = {"name": "matrix products", "exposed_s": [0.7, 0.8, 0.9]}
    time = {"step_s": [0.9, 1.0, 1.1], "kinds": [kind], "device_idle_s": [0.1, 0.2, 0.3]}
    document = {"time": time, "torch": "2.9.1+cu128", "wall_s": 10}
    prediction = read_prediction(document)
    kinds = {"matrix products": 0.8, "device idle": 0.2}
    assert prediction == replace(made(0.9, 1.0, 1.1), kinds=kinds)
    for broken in ({**document, "time": None}, {"torch": "2.9.1", "wall_s": 10}):
        with pytest.raises((KeyError, TypeError)):
            read_prediction(broken)
    path = tmp_path / "results.json"
    assert read_results(path) == {}
    write_results(path, {"a": prediction})
    assert read_results(path) == {"a": prediction}
