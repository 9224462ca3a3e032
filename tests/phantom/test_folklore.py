"""What docs/results/explain.md says of each claim holds in the figures of its runs."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks.folklore.claims import SECTIONS
from benchmarks.folklore.measure import run
from benchmarks.folklore.section import Play, Played
from benchmarks.plans import closed_forms
from benchmarks.results import read_rows

pytestmark = pytest.mark.phantom
SHAPE_7B = {"parameters": 6_738_415_616, "linear": 6_476_005_376}

Runs = dict[str, Played]
Shown = Callable[[str], tuple[Runs, dict[str, float]]]


@pytest.fixture(scope="module")
def shown(thin_python: Path) -> Shown:
    """The runs of a section, each once, and its figures."""
    played: dict[Play, Played] = {}

    def show(name: str) -> tuple[Runs, dict[str, float]]:
        section = SECTIONS[name]
        code = f"import {section.needs or 'torch'}"
        if section.needs and subprocess.run([thin_python, "-c", code], check=False).returncode:
            pytest.skip(f"the environment has no {section.needs}")
        for play in section.plays.values():
            if play not in played:
                played[play] = run(play, thin_python)
        runs = {key: played[play] for key, play in section.plays.items()}
        return runs, section.figures(runs)

    return show


@pytest.mark.parametrize("name", SECTIONS)
def test_the_page_has_each_claim_with_its_figures(name: str) -> None:
    rows = [row for row in read_rows("folklore") if row["claim"] == name]
    section = SECTIONS[name]
    commands = [row["command"] for row in rows if row["command"]]
    assert [*dict.fromkeys(commands)] == [play.command for play in section.plays.values()]
    said = [(row["what"], row["said"]) for row in rows if row["what"]]
    assert said == [(row.what, row.said or "-") for row in section.rows]


@pytest.mark.slow
def test_checkpointing_a_chain_takes_what_the_textbook_says(shown: Shown) -> None:
    _, figures = shown("square-root")
    assert figures.pop("none") == closed_forms.autograd_peak(64)
    for count, peak in figures.items():  # two gradients beside what is kept
        assert peak == closed_forms.checkpointed_peak(64, int(count)) + 2
    assert min(figures, key=figures.__getitem__) == str(closed_forms.best_num_segments(64))


@pytest.mark.slow
def test_the_first_layers_of_resnet_18_keep_more_than_their_outputs(shown: Shown) -> None:
    _, figures = shown("resnet18")
    assert figures["conv"] == 128 * 64 * 112 * 112 * 4
    assert figures["conv"] <= figures["norm"] < 1.001 * figures["conv"]
    assert figures["relu"] == 0
    assert figures["pool"] == figures["conv"] / 4
    assert figures["indices"] == 3 * figures["pool"], "8 bytes of index for each number of 4"


def test_deleting_gives_memory_to_the_cache_and_the_cache_to_the_device(shown: Shown) -> None:
    runs, _ = shown("delete")
    lines = re.findall(r"([\d.]+) +([\d.]+) +([\d.]+)$", runs["run"].text, re.MULTILINE)
    nothing, made, viewed, deleted, smaller, emptied, given_back = (
        tuple(map(float, line)) for line in lines
    )
    assert made == viewed, "a view keeps all of its storage"
    assert deleted == (0, *made[1:])
    assert smaller == emptied, "a segment in use stays whole"
    assert given_back == nothing
    assert nothing[2] > 0, "the context"


def test_memory_runs_out_while_the_device_shows_some_free(shown: Shown) -> None:
    runs, _ = shown("free")
    text = runs["run"].text
    states = [
        tuple(map(float, found))
        for found in re.findall(r"([\d.]+) GiB free, ([\d.]+) allocated, ([\d.]+) reserved", text)
    ]
    failing, looked_at, holes = states
    assert 0 < failing[0] < 4 < looked_at[0]
    assert holes[2] - holes[1] > 4, "more is reserved and unused than is asked for"
    answers = re.findall(r"(\d) GiB more: (out of memory|there they are)", text)
    assert answers == [("4", "out of memory"), ("2", "there they are"), ("4", "out of memory")]


@pytest.mark.slow
def test_max_split_size_helps_one_program_and_harms_another(shown: Shown) -> None:
    runs, _ = shown("split")

    def reserved(name: str) -> int:
        found = re.search(r"(\d+) MiB allocated, (\d+) MiB reserved", runs[name].text)
        assert found is not None
        return int(found[2])

    keeping, shrinking = (
        [reserved(f"{what}{number}") for number in range(3)] for what in ("keeping", "shrinking")
    )
    assert keeping[1] < 0.75 * keeping[0]
    assert shrinking[1] > 4 * shrinking[0]
    assert keeping[2] < keeping[1] and shrinking[2] < 1.1 * shrinking[0], "expandable segments"


@pytest.mark.nightly
def test_adams_states_follow_the_type_of_the_weights(shown: Shown) -> None:
    _, figures = shown("adam")
    for name, state_bytes in (("fp32", 4), ("bf16", 2)):
        expected = 2 * state_bytes * SHAPE_7B["parameters"]
        assert figures[name] == pytest.approx(expected, rel=1e-3)
    assert figures["lora"] < figures["bf16"] / 100


@pytest.mark.nightly
def test_four_times_the_model_is_training_without_activations(shown: Shown) -> None:
    _, figures = shown("four-times")
    assert figures["bf16"] == pytest.approx(4 * figures["infer"], rel=0.01)
    assert figures["fp32"] == pytest.approx(8 * figures["infer"], rel=0.01)
    assert figures["long"] > 1.5 * figures["bf16"]
    assert 14e9 > figures["lora"] > figures["infer"]
    assert figures["lora-less"] < 20e9 < figures["lora-long"]


@pytest.mark.nightly
def test_the_bytes_of_a_parameter_are_those_of_the_recipe(shown: Shown) -> None:
    _, figures = shown("bytes-each")
    expected = {"bf16": 8, "part": 12, "masters": 16, "fp32-gradients": 18, "both": 20}
    for name, each in (expected | {"fp32": 16, "autocast": 16, "foreach": 20}).items():
        assert figures[name] == pytest.approx(each, rel=2e-3)


@pytest.mark.nightly
def test_four_bits_are_half_a_byte_and_their_scales(shown: Shown) -> None:
    _, figures = shown("int4")
    numbers = SHAPE_7B["linear"]
    expected = {
        "int4": numbers / 2 + 2 * numbers / 128,
        "int4-unpacked": numbers + 2 * numbers // 128,
        "nf4": numbers / 2 + 4 * numbers / 64,
        "nf4-double": numbers / 2 + numbers / 64 + 4 * numbers / 64 / 256,
    }
    for name, bytes_ in expected.items():
        assert figures[name] == pytest.approx(bytes_ / numbers, rel=1e-3)
    assert 1 < figures["int8"] < 1.001


@pytest.mark.nightly
def test_gpt_3_takes_what_its_shape_says(shown: Shown) -> None:
    _, figures = shown("gpt3")
    # Narayanan et al. 2021, arXiv:2104.04473, equation (2).
    parameters = 96 * (12 * 12288**2 + 13 * 12288) + 50257 * 12288
    assert figures["weights"] == pytest.approx(2 * parameters, rel=1e-4)
    assert figures["cache"] == 2048 * 2 * 96 * 96 * 128 * 2
    assert figures["train"] == pytest.approx(16 * parameters, rel=0.01)


@pytest.mark.nightly
def test_what_is_kept_of_activations_follows_the_batch(shown: Shown) -> None:
    _, figures = shown("activations")
    assert figures["image"] < 1 < 10 < figures["images"] < 100
    assert 10 < figures["gpt2"] < 100
    assert figures["7b"] < 1 < figures["7b-more"]
    assert figures["7b-more"] == pytest.approx(16 * figures["7b"], rel=0.02)


@pytest.mark.nightly
def test_resnet_50_keeps_half_of_what_is_said(shown: Shown) -> None:
    _, figures = shown("resnet50")
    assert figures["kept"] < 0.5 * 6e9 < figures["twice"] < 6e9
    assert figures["kept"] < figures["peak"] < figures["used"] < 6e9


@pytest.mark.nightly
def test_autocast_halves_images_and_not_small_batches_of_text(shown: Shown) -> None:
    _, figures = shown("amp")
    assert 0.45 < figures["images"] <= figures["images-kept"] < 0.5
    assert 0 < figures["long"] < 0.25
    assert figures["short-kept"] < 0, "the cache of cast weights is more than what is spared"
    assert abs(figures["short"]) < 0.01
    assert figures["bf16"] == pytest.approx(0.5, abs=0.01)


@pytest.mark.nightly
def test_checkpointing_saves_what_is_kept_more_than_the_peak(shown: Shown) -> None:
    runs, figures = shown("checkpointing")
    assert figures["kept-times"] > 8 > 4 > figures["peak-times"]
    assert figures["kept"] > 0.8 > figures["peak"] > figures["root"]
    assert figures["images"] < figures["images-kept"] < 0.8
    assert 0.15 < figures["flops"] < 1 / 3
    batch, tokens, width, key_width, hidden, heads = 4, 2048, 2048, 256, 5632, 32
    products = 2 * width**2 + 2 * width * key_width + 2 * width * hidden  # all but the last one
    attention = 4 * batch * heads * tokens**2 * (width // heads)
    again = 22 * (2 * batch * tokens * products + attention)
    assert runs["all"].said["flops"] - runs["none"].said["flops"] == again


@pytest.mark.nightly
def test_accumulating_holds_one_batch_and_the_gradients(shown: Shown) -> None:
    runs, figures = shown("accumulation")
    gradients = figures["four"] - figures["single"]
    assert gradients == pytest.approx(runs["four"].said["weight_bytes"], rel=0.05)
    assert figures["most"] < figures["four"] < figures["one"] / 3


@pytest.mark.nightly
def test_70b_on_four_a100_needs_a_terabyte_of_host_memory(shown: Shown) -> None:
    runs, figures = shown("offload")
    assert runs["host"].document["verdict"] == "fits"
    assert runs["gpu"].document["verdict"] == "out_of_memory"
    assert figures["used"] < 40e9
    assert figures["tensors"] == pytest.approx(4 * 70.55e9, rel=1e-3)
    assert figures["node"] > 1e12
