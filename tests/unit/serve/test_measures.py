"""Objectives, percentiles and goodput, against figures worked out by hand."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from ullage.ground.errors import SpecError
from ullage.operate.serve.measures import measure
from ullage.operate.serve.outcome import Outcome, read_outcome
from ullage.operate.serve.slo import Slo, parse_slo
from ullage.operate.serve.traffic import Traffic

ENGINE: dict[str, Any] = {
    "name": "vllm", "version": "0.32.0", "weights_bytes": 16 << 30,
    "peak_activation_bytes": 2 << 30, "kv_cache_bytes": 53 << 30, "num_blocks": 27_000,
    "block_tokens": 16, "kv_cache_tokens": 432_000, "max_concurrency": 52.7,
    "device_used_bytes": 74 << 30, "device_bytes": 79 << 30, "utilization_frac": 0.92,
    "max_model_len": 8192, "max_num_seqs": 1024, "max_num_batched_tokens": 8192,
    "is_async": True, "has_prefix_caching": True, "has_graphs": True, "tensor_parallel": 1,
    "ignored": [], "block_bytes": (53 << 30) // 27_000,
}  # fmt: skip


def document() -> dict[str, Any]:
    """Four requests: two answered, one of a single token, one that never is."""
    return {
        "engine": ENGINE,
        "requests": {
            "arrival_s": [0.0, 1.0, 2.0, 3.0],
            "begin_s": [0.0, 1.5, 2.0, None],
            "first_token_s": [0.5, 3.0, 2.25, None],
            "end_s": [1.5, 5.0, 2.25, None],
            "output_tokens": [11, 5, 1, 0],
            "cached_tokens": [0, 64, 0, 0],
            "num_preemptions": [0, 3, 0, 0],
            "usage_frac": [0.0, 0.3, 0.95, 1.0],
        },
        "rejected": {},
        "levels": {
            "time_s": [0.0, 1.0], "running": [1, 2], "waiting": [0, 4], "usage_frac": [0.1, 0.9],
        },
        "usage_peak_frac": 0.97,
        "usage_mean_frac": 0.5,
        "end_s": 5.0,
        "num_steps": 20,
        "device_s": 4.0,
        "prompt_s": 1.0,
        "attention_s": 0.5,
        "host_s": 0.0,
        "attention_left_out": [],
        "step_times": {"decode": {"tokens": [1], "seconds": [0.01]}},
        "real_s": {"start_s": 60.0},
    }  # fmt: skip


def outcome_of(changed: dict[str, Any] | None = None) -> Outcome:
    traffic = Traffic.of(
        "test", [0, 1, 2, 3], [100, 100, 100, 100], [11, 5, 1, 9],
        class_names=["chat", "chat", "code", "code"],
    )  # fmt: skip
    return read_outcome({**document(), **(changed or {})}, traffic)


def test_times_are_differences_of_moments() -> None:
    outcome = outcome_of()
    assert outcome.ttft_s.tolist()[:3] == [0.5, 2.0, 0.25] and np.isnan(outcome.ttft_s[3])
    assert outcome.tpot_s.tolist()[:2] == [0.1, 0.5] and np.isnan(outcome.tpot_s[2:]).all()
    assert outcome.e2e_s.tolist()[:3] == [1.5, 4.0, 0.25]
    assert outcome.queue_s.tolist()[:3] == [0.0, 0.5, 0.0]
    assert outcome.num_stuck == 1


def test_goodput_counts_all_requests_and_forgives_single_tokens() -> None:
    slo = parse_slo("ttft=1s,tpot=200ms")
    outcome = outcome_of()
    assert slo.holds(outcome.ttft_s, outcome.tpot_s, outcome.e2e_s).tolist() == [
        True, False, True, False,
    ]  # fmt: skip
    measures = measure(outcome, slo)
    assert [each.name for each in measures.classes] == ["all", "chat", "code"]
    assert [each.goodput_frac for each in measures.classes] == [0.5, 0.5, 0.5]
    assert measures.good_requests_per_s == pytest.approx(0.5 * 4 / 5)


def test_figures_of_a_run() -> None:
    measures = measure(outcome_of(), None)
    everyone = measures.classes[0]
    assert (everyone.num_requests, everyone.num_answered, everyone.goodput_frac) == (4, 3, None)
    assert everyone.ttft_s.p50 == 0.5 and everyone.tpot_s.p50 == pytest.approx(0.3)
    assert measures.requests_per_s == pytest.approx(3 / 5)
    assert measures.output_tokens_per_s == pytest.approx(17 / 5)
    assert (measures.num_preempted, measures.num_preemptions) == (1, 3)
    assert measures.prefix_hit_frac == pytest.approx(64 / 300)
    assert measures.queue_peak == 4 and measures.idle_frac == pytest.approx(0.2)


def test_rows_by_occupancy_have_every_request_once() -> None:
    rows = measure(outcome_of(), None).by_occupancy
    assert [(row.low_frac, row.num_requests) for row in rows] == [
        (0.0, 1), (0.25, 1), (0.9, 1), (0.97, 1),
    ]  # fmt: skip


def test_a_refused_request_is_not_stuck() -> None:
    outcome = outcome_of({"rejected": {"3": "longer than max_model_len"}})
    assert outcome.num_stuck == 0 and outcome.rejected == {3: "longer than max_model_len"}


def test_no_request_has_no_percentiles() -> None:
    empty = {name: [] for name in document()["requests"]}
    outcome = read_outcome({**document(), "requests": empty}, Traffic.of("none", [], [], []))
    measures = measure(outcome, parse_slo("e2e=1s"))
    assert measures.classes[0].ttft_s == (None, None, None) and measures.prefix_hit_frac == 0


@pytest.mark.parametrize(
    ("text", "slo"),
    [
        ("ttft=1s,tpot=50ms", Slo(1.0, 0.05)),
        ("e2e=2m", Slo(e2e_s=120.0)),
        (" ttft = 500ms ", Slo(0.5)),
    ],
)
def test_an_objective_is_read_and_written(text: str, slo: Slo) -> None:
    assert parse_slo(text) == slo == parse_slo(slo.text())


@pytest.mark.parametrize("text", ["", "ttft", "ttft=soon", "itl=1s", "ttft=1s,ttft=2s", "ttft=0s"])
def test_a_bad_objective_is_refused(text: str) -> None:
    with pytest.raises(SpecError):
        parse_slo(text)


def test_the_outcome_is_json() -> None:
    """What the engine's process writes has no NAN, which JSON lacks."""
    assert json.loads(json.dumps(document(), allow_nan=False)) == document()
