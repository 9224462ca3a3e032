"""The textbook results against brute force over short chains, and against each other."""

from __future__ import annotations

import doctest
import itertools
import math
from collections.abc import Iterator
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rows import each

from ullage.errors import SpecError
from ullage.estimate import textbook
from ullage.estimate.textbook import Recompute, Schedule, States
from ullage.estimate.training import checkpointing

SHORT = range(1, 13)
sizes = st.integers(1, 10**6)


def segmentations(num_layers: int, num_segments: int) -> Iterator[tuple[int, ...]]:
    """Every way to cut a chain, as lengths."""
    for cuts in itertools.combinations(range(1, num_layers), num_segments - 1):
        edges = (0, *cuts, num_layers)
        yield tuple(end - start for start, end in itertools.pairwise(edges))


def replayed_peak(lengths: tuple[int, ...], *, lets_go: bool) -> int:
    """The most units held while a checkpointed chain is run back segment by segment."""
    checkpoints = peak = len(lengths)
    for length in reversed(lengths):
        peak = max(peak, checkpoints + length)
        checkpoints -= lets_go
    return peak


@cache
def fewest_runs(num_layers: int, num_checkpoints: int) -> int:
    """Revolve's optimum by trying every place for the next checkpoint."""
    if num_layers == 1:
        return 0
    if num_checkpoints == 1:
        return num_layers * (num_layers - 1) // 2
    return min(
        place + fewest_runs(num_layers - place, num_checkpoints - 1)
        + fewest_runs(place, num_checkpoints)
        for place in range(1, num_layers)
    )  # fmt: skip


def test_the_examples_of_the_module_are_true() -> None:
    assert doctest.testmod(textbook) == doctest.testmod(checkpointing) == (0, 1)


@each(("num_layers", "frees"), itertools.product(SHORT, [True, False]))
def test_the_peak_of_autograd_is_that_of_a_replay(num_layers: int, *, frees: bool) -> None:
    outputs, gradients, peak = num_layers, 1, 0
    for layer in range(num_layers, 0, -1):
        gradients += layer > 1  # the chain's input wants none
        peak = max(peak, outputs + gradients)
        if frees:
            outputs, gradients = outputs - 1, gradients - 1
    assert checkpointing.autograd_peak(num_layers, frees=frees) == peak


@each("num_layers", SHORT)
def test_even_segments_are_the_best_where_checkpoints_are_kept(num_layers: int) -> None:
    for num_segments in range(1, num_layers + 1):
        cuts = segmentations(num_layers, num_segments)
        least = min(replayed_peak(lengths, lets_go=False) for lengths in cuts)
        assert checkpointing.checkpointed_peak(num_layers, num_segments) == least


@each("num_layers", SHORT)
def test_no_segmentation_is_below_the_least_peak_with_checkpoints_let_go(num_layers: int) -> None:
    least = min(
        replayed_peak(lengths, lets_go=True)
        for num_segments in range(1, num_layers + 1)
        for lengths in segmentations(num_layers, num_segments)
    )
    assert checkpointing.least_checkpointed_peak(num_layers) == least


@given(sizes)
def test_the_square_root_is_the_least_of_all_counts(num_layers: int) -> None:
    num_segments = checkpointing.best_num_segments(min(num_layers, 5000))
    num_layers = min(num_layers, 5000)
    peaks = [checkpointing.checkpointed_peak(num_layers, k) for k in range(1, num_layers + 1)]
    assert checkpointing.sqrt_peak(num_layers) == min(peaks) == peaks[num_segments - 1]
    assert peaks.index(min(peaks)) == num_segments - 1


@given(sizes)
def test_the_square_root_bounds_hold(num_layers: int) -> None:
    even = checkpointing.sqrt_peak(num_layers)
    best = checkpointing.least_checkpointed_peak(num_layers)
    assert (even - 1) ** 2 < 4 * num_layers <= even**2
    assert best * (best - 1) // 2 >= num_layers > (best - 1) * (best - 2) // 2
    assert best <= even


@given(st.integers(1, 200), st.integers(1, 200))
def test_recomputation_runs_no_layer_more_than_twice(num_layers: int, num_segments: int) -> None:
    num_segments = min(num_layers, num_segments)
    spared = checkpointing.recomputed_layers(num_layers, num_segments, spares_last=True)
    last = num_layers - num_layers * (num_segments - 1) // num_segments
    assert checkpointing.recomputed_layers(num_layers, num_segments) == num_layers
    assert num_layers - last <= spared < num_layers


@each(("num_layers", "num_checkpoints"), itertools.product(range(1, 40), range(1, 7)))
def test_revolve_is_the_optimum_of_all_schedules(num_layers: int, num_checkpoints: int) -> None:
    runs = checkpointing.revolve_forward_runs(num_layers, num_checkpoints)
    assert runs == fewest_runs(num_layers, num_checkpoints)


@given(st.integers(1, 12), st.integers(1, 6))
def test_one_layer_beyond_the_reach_takes_another_sweep(checkpoints: int, sweeps: int) -> None:
    reach = checkpointing.revolve_reach(checkpoints, sweeps)
    steps = [checkpointing.revolve_forward_runs(reach + more, checkpoints) for more in (-1, 0, 1)]
    assert steps[1] - steps[0] == sweeps
    assert steps[2] - steps[1] == sweeps + 1


@given(sizes, st.sampled_from([(2, False, 16), (4, False, 18), (2, True, 20)]))
def test_the_bytes_of_a_parameter_are_the_sum_of_their_parts(
    num_parameters: int, recipe: tuple[int, bool, int]
) -> None:
    gradient_bytes, accumulates, each = recipe
    states = textbook.mixed_precision_states(
        num_parameters, gradient_bytes=gradient_bytes, accumulates_fp32=accumulates
    )
    assert states.total_bytes == sum(states) == each * num_parameters
    assert states.optimizer_bytes == 8 * num_parameters


@given(sizes, st.integers(1, 4096))
def test_each_stage_of_zero_holds_less_and_the_ranks_hold_all(parameters: int, ranks: int) -> None:
    states = textbook.mixed_precision_states(parameters)
    stages = [textbook.zero_states(states, stage, ranks) for stage in range(4)]
    totals = [states.total_bytes for states in stages]
    assert stages[0] == states
    assert totals == sorted(totals, reverse=True)
    for part, share in zip(states, stages[3], strict=True):
        assert part <= ranks * share < part + ranks
    if ranks == 1:
        assert stages[3] == states


def test_the_stages_of_zero_are_those_of_its_paper() -> None:
    states = textbook.mixed_precision_states(7_500_000_000)
    held = [textbook.zero_states(states, stage, 64).total_bytes / 1e9 for stage in range(4)]
    assert [round(gigabytes, 1) for gigabytes in held] == [120.0, 31.4, 16.6, 1.9]  # figure 1


@given(
    tokens=st.integers(1, 64).map(lambda n: 64 * n),
    heads=st.integers(1, 16),
    tp_size=st.sampled_from([1, 2, 4, 8]),
    recompute=st.sampled_from(Recompute),
)
def test_sharing_out_activations_never_takes_more(
    tokens: int, heads: int, tp_size: int, recompute: Recompute
) -> None:
    def kept(tp: int, *, sp: bool = False, how: Recompute = recompute) -> int:
        return textbook.activation_bytes_per_layer(
            tokens, 64 * heads, num_heads=heads, seq_len=64,
            tp_size=tp, sequence_parallel=sp, recompute=how,
        )  # fmt: skip

    assert kept(1, sp=True) == kept(1)
    assert kept(tp_size, sp=True) <= kept(tp_size) <= kept(1)
    whole, selective, full = (kept(tp_size, sp=True, how=how) for how in Recompute)
    assert full < selective < whole
    hidden = 64 * heads
    assert kept(1, how=Recompute.NONE) == tokens * hidden * (34 + 5 * heads * 64 / hidden)


def test_selective_recomputation_spares_what_its_paper_says() -> None:
    sizes = {"num_heads": 96, "seq_len": 2048}  # GPT-3
    whole, selective = (
        textbook.activation_bytes_per_layer(2048, 12288, recompute=how, **sizes)
        for how in (Recompute.NONE, Recompute.SELECTIVE)
    )
    assert round(1 - selective / whole, 2) == 0.70


def test_the_parameters_of_gpt_3_are_175_billion() -> None:
    parameters = textbook.transformer_parameters(96, 12288, vocabulary_size=50257, seq_len=2048)
    assert round(parameters / 1e9, 1) == 174.6
    assert textbook.transformer_parameters(96, 12288) < parameters


def test_the_cache_of_llama_2_7b_takes_half_a_mebibyte_a_token() -> None:
    assert textbook.kv_bytes_per_token(32, 32, 128) == 2**19
    assert textbook.kv_bytes_per_token(32, 8, 128) == 2**17


def interleaved_peak(stage: int, stages: int, batches: int, chunks: int) -> int:
    """Chunks in flight when Megatron's schedule is played: warm-up, then one forward, one back."""
    warm_up = min(2 * (stages - stage - 1) + (chunks - 1) * stages, batches * chunks)
    return min(warm_up + 1, batches * chunks)


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 4), st.data())
def test_schedules_hold_what_playing_them_holds(
    stages: int, rounds: int, chunks: int, data: st.DataObject
) -> None:
    stage, batches = data.draw(st.integers(0, stages - 1)), stages * rounds

    def held(schedule: Schedule, num_chunks: int = 1) -> float:
        return textbook.in_flight_micro_batches(
            schedule, stage, stages, batches, num_chunks=num_chunks
        )

    assert held(Schedule.GPIPE) == batches
    assert held(Schedule.ONE_F_ONE_B) == held(Schedule.INTERLEAVED) if stage == stages - 1 else True
    assert held(Schedule.ONE_F_ONE_B) == min(stages - stage, batches)
    played = interleaved_peak(stage, stages, batches, chunks)
    assert math.isclose(held(Schedule.INTERLEAVED, chunks), played / chunks)
    assert held(Schedule.ONE_F_ONE_B) <= held(Schedule.ZERO_BUBBLE_H1)
    assert held(Schedule.ZERO_BUBBLE_H1) <= held(Schedule.ZERO_BUBBLE_H2) <= held(Schedule.GPIPE)


@given(sizes, st.integers(1, 512))
def test_ring_attention_shares_out_tokens(tokens: int, ranks: int) -> None:
    whole, share = (textbook.ring_attention_bytes(tokens, 64, size) for size in (1, ranks))
    assert whole <= ranks * share < whole + ranks * 6 * 64 * 2


@given(sizes)
def test_four_bits_take_half_a_byte_and_the_scales(num_weights: int) -> None:
    half = -(-num_weights // 2)
    single = textbook.nf4_bytes(num_weights)
    double = textbook.nf4_bytes(num_weights, double_quantised=True)
    plain = textbook.int4_bytes(num_weights, zero_bits=0)
    assert half < plain <= textbook.int4_bytes(num_weights) <= half + 3 * -(-num_weights // 128)
    assert half < double <= single + 1
    many = 2**20 * num_weights
    assert textbook.nf4_bytes(many) * 8 / many == 4.5
    assert textbook.nf4_bytes(many, double_quantised=True) * 8 / many == 4 + 8 / 64 + 32 / 64 / 256
    assert textbook.int4_bytes(many) * 8 / many == 4 + (16 + 4) / 128


@given(st.integers(1, 10**4), st.integers(1, 10**4))
def test_int8_adds_a_scale_for_each_row(rows: int, columns: int) -> None:
    assert textbook.int8_bytes(rows, columns) - rows * columns == 4 * rows


@given(sizes, st.integers(1, 4096), st.integers(1, 10**4))
def test_an_index_grows_by_whole_vectors(vectors: int, dim: int, lists: int) -> None:
    index = textbook.ivf_bytes(vectors, dim, lists)
    assert textbook.ivf_bytes(vectors + 1, dim, lists) - index == 4 * dim + 8
    assert textbook.ivf_bytes(vectors, dim, lists, code_bytes=4 * dim) == index
    assert textbook.hnsw_bytes(vectors, dim) == vectors * textbook.hnsw_bytes(1, dim)
    assert textbook.hnsw_bytes(1, dim) - 4 * dim == 64 * 4


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: checkpointing.autograd_peak(0), "num_layers=0 .* 1 or more"),
        (lambda: checkpointing.checkpointed_peak(3, 4), "num_segments=4 .* num_layers=3"),
        (lambda: textbook.zero_states(States(1, 1, 1, 1, 1), 4, 8), "zero_stage=4 .* 0, 1, 2 or 3"),
        (lambda: textbook.in_flight_micro_batches(Schedule.GPIPE, 4, 4, 8), "stage=4 .* 0 to 3"),
        (
            lambda: textbook.in_flight_micro_batches(Schedule.GPIPE, 0, 4, 8, num_chunks=2),
            "num_chunks=2 is for Schedule.INTERLEAVED",
        ),
    ],
)
def test_what_is_not_possible_is_said(wrong: object, says: str) -> None:
    assert callable(wrong)
    with pytest.raises(SpecError, match=says):
        wrong()
