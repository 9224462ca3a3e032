"""Traffic: what the readers read, how bad rows are named, and what the generators draw."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from ullage.ground.errors import SpecError
from ullage.operate.serve.traffic import Traffic, load_traffic
from ullage.operate.serve.traffic.spec import KINDS, parse_duration

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:14.2315660,110,27
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:01.009930+00:00,2399,6
"""
BURST = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118,GPT-4,417,276,693,API log
"""
MOONCAKE = """{"timestamp": 3000, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 7]}
{"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [0, 4]}
"""


def read(tmp_path: Path, text: str, name: str = "trace.csv") -> Traffic:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return load_traffic(str(path))


def test_azure_of_2023_counts_from_its_first_request(tmp_path: Path) -> None:
    traffic = read(tmp_path, AZURE)
    assert traffic.arrival_s.tolist() == pytest.approx([0, 0.052, 10.251606], abs=1e-6)
    assert traffic.prompt_tokens.tolist() == [4808, 3180, 110]
    assert traffic.output_tokens.tolist() == [10, 8, 27]


def test_azure_of_2024_names_its_zone(tmp_path: Path) -> None:
    assert read(tmp_path, AZURE_2024).arrival_s.tolist() == pytest.approx([0, 1], abs=1e-6)


def test_failures_of_burst_gpt_are_left_out_and_counted(tmp_path: Path) -> None:
    traffic = read(tmp_path, BURST)
    assert traffic.num_left_out == 1 and traffic.arrival_s.tolist() == [0, 113]
    assert [traffic.class_of(index) for index in (0, 1)] == ["Conversation log", "API log"]


def test_mooncake_is_sorted_with_its_blocks(tmp_path: Path) -> None:
    traffic = read(tmp_path, MOONCAKE, "trace.jsonl")
    assert traffic.arrival_s.tolist() == [0, 3] and traffic.prompt_tokens.tolist() == [600, 1100]
    assert traffic.blocks_of(0).tolist() == [0, 4] and traffic.blocks_of(1).tolist() == [0, 1, 7]


def test_the_detailed_result_of_vllm_bench_is_a_trace(tmp_path: Path) -> None:
    result = {"input_lens": [10, 20], "output_lens": [3, 0], "start_times": [100.5, 101.0]}
    traffic = read(tmp_path, json.dumps(result), "result.json")
    assert traffic.prompt_tokens.tolist() == [10] and traffic.num_left_out == 1
    indented = read(tmp_path, json.dumps(result, indent=1), "indented.json")
    assert indented.prompt_tokens.tolist() == [10]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (AZURE + "2023-11-16 18:17:15,ten,3\n", "line 5: ContextTokens is 'ten'"),
        (AZURE + "2023-11-16 18:17:15,10\n", "line 5: not as many values"),
        (AZURE + "yesterday,10,3\n", "line 5: TIMESTAMP is 'yesterday'"),
        (AZURE + "2023-11-16 18:17:15,-4,3\n", "line 5: ContextTokens is '-4'"),
        (BURST + "nan,ChatGPT,1,1,2,API log\n", "line 5: Timestamp is 'nan'"),
        (MOONCAKE + '{"timestamp": 1, "input_length": 4}\n', "line 3: no 'output_length'"),
        (MOONCAKE + "[1, 2]\n", "line 3: found [1, 2]"),
        (MOONCAKE + "{\n", "line 3: Expecting"),
        (MOONCAKE.replace("[0, 4]", '["a"]'), "line 2: hash_ids has 'a'"),
        (MOONCAKE.replace("600", "1e400"), "line 2"),
        ('{"input_lens": [1]}', "no list 'output_lens'"),
        ("time,tokens\n1,2\n", "line 1: found 'time,tokens'"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "no request with a prompt"),
        ("", "line 1: found ''"),
    ],
)
def test_a_bad_row_is_named_by_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(SpecError) as failure:
        read(tmp_path, text)
    assert said in str(failure.value)


def test_poisson_arrivals_have_their_rate_and_no_memory() -> None:
    traffic = load_traffic("poisson:rate=20,prompt=100,output=10,duration=1h,seed=3")
    gaps = np.diff(traffic.arrival_s)
    assert len(traffic) == pytest.approx(72_000, rel=0.02)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.03)
    assert set(traffic.prompt_tokens) == {100} and traffic.duration_s < 3600


@pytest.mark.parametrize(
    ("kind", "prompt", "output"),
    [("azure-conv", (1020, 4142), (129, 601)), ("azure-code", (1469, 7436), (13, 252))],
)
def test_azure_shapes_have_the_published_percentiles(
    kind: str, prompt: tuple[int, int], output: tuple[int, int]
) -> None:
    traffic = load_traffic(f"{kind}:duration=2h")
    for column, percentiles in ((traffic.prompt_tokens, prompt), (traffic.output_tokens, output)):
        assert np.percentile(column, (50, 99)) == pytest.approx(percentiles, rel=0.1)


def test_bursts_leave_pauses_and_keep_the_mean_rate() -> None:
    traffic = load_traffic("bursts:rate=5,prompt=10,output=10,on=10,off=50,duration=1h")
    assert (traffic.arrival_s % 60 < 10).all()
    assert len(traffic) == pytest.approx(18_000, rel=0.05)


def test_a_session_repeats_its_prompt_and_grows() -> None:
    traffic = load_traffic(
        "sessions:rate=0.01,prompt=200,output=100,turns=3,think=10,system=640,duration=10m"
    )
    first = sorted(traffic.prompt_tokens.tolist())[0]
    assert set(traffic.prompt_tokens) == {840, 1140, 1440} and first == 840
    by_length = {
        length: [traffic.blocks_of(i).tolist() for i in range(len(traffic))
                 if traffic.prompt_tokens[i] == length]
        for length in (840, 1140, 1440)
    }  # fmt: skip
    for before, after in ((840, 1140), (1140, 1440)):
        heads = [row[: before // 64] for row in by_length[after]]
        assert all(row in heads for row in by_length[before])
    assert all(row[:10] == list(range(10)) for row in by_length[840])
    assert len({tuple(row[10:]) for row in by_length[840]}) == len(by_length[840])


def test_kinds_are_merged_by_arrival_with_their_own_blocks() -> None:
    text = "sessions:rate=0.05,prompt=200,output=10,duration=5m+documents:rate=0.05,duration=5m"
    traffic = load_traffic(text)
    assert (np.diff(traffic.arrival_s) >= 0).all()
    assert set(traffic.classes) == {"sessions", "documents"}
    lengths = {
        name: {len(traffic.blocks_of(i)) > 0 for i in range(len(traffic))
               if traffic.class_of(i) == name}
        for name in traffic.classes
    }  # fmt: skip
    assert lengths == {"sessions": {True}, "documents": {False}}


def test_a_closed_loop_has_users_and_no_arrivals() -> None:
    traffic = load_traffic("closed:users=8,requests=20,prompt=1024,output=128")
    assert traffic.num_users == 8 and len(traffic) == 20 and traffic.duration_s == 0


def test_a_staggered_loop_begins_with_answers_of_all_lengths() -> None:
    traffic = load_traffic("closed:users=4,requests=8,prompt=10,output=100,stagger=1")
    assert traffic.output_tokens.tolist() == [25, 50, 75, 100, 100, 100, 100, 100]


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_text_gives_the_same_requests(kind: str) -> None:
    needed = {key: "4" for key, value in KINDS[kind].items() if value is None}
    text = f"{kind}:" + ",".join(f"{key}={value}" for key, value in needed.items())
    first, again = load_traffic(text), load_traffic(text)
    assert len(first) and (first.arrival_s == again.arrival_s).all()
    assert (first.prompt_tokens == again.prompt_tokens).all()
    if "duration" in KINDS[kind]:
        other = load_traffic(f"{text},seed=1")
        assert first.arrival_s.tolist() != other.arrival_s.tolist()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("poison:rate=1", "is neither a file nor a generator"),
        ("poisson:rate=1,prompt=4", "has no output"),
        ("poisson:rate=0,prompt=4,output=4", "expected a number above 0"),
        ("poisson:rate=1,prompt=0,output=4", "at least 1"),
        ("poisson:rate=1,prompt=1.5,output=4", "a whole number"),
        ("poisson:rate=nan,prompt=1,output=4", "rate is 'nan'"),
        ("poisson:rate=1,prompt=1,output=4,duration=soon", "'soon' is not a time"),
        ("poisson:rate=1,prompt=1,output=4,size=3", "found 'size=3'"),
        ("poisson:rate=9999,prompt=1,output=4,duration=9999h", "at most 5,000,000"),
        ("poisson:rate=1,prompt=1,output=4+burst:rate=1", "'burst' is not a kind"),
        ("documents:duration=1h+closed:users=1,requests=1,prompt=1,output=1", "is alone"),
    ],
)
def test_a_bad_generator_says_what_was_expected(text: str, said: str) -> None:
    with pytest.raises(SpecError) as failure:
        load_traffic(text)
    assert said in str(failure.value)


def test_traffic_can_be_cut_and_made_faster() -> None:
    traffic = load_traffic("sessions:rate=1,prompt=200,output=10,duration=5m")
    cut = traffic.until(60)
    assert 0 < len(cut) < len(traffic) and cut.duration_s < 60
    assert cut.blocks_of(len(cut) - 1).tolist() == traffic.blocks_of(len(cut) - 1).tolist()
    assert traffic.faster(2).duration_s == pytest.approx(traffic.duration_s / 2)
    with pytest.raises(SpecError):
        traffic.faster(0)


def test_durations_have_units() -> None:
    assert [parse_duration(text) for text in ("500ms", "30", "2m", "1.5h")] == [0.5, 30, 120, 5400]
