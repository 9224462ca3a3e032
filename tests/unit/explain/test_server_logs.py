"""Start-up logs and metrics of servers: read, explained, compared.

server_logs/ has what benchmarks/serving/start_logs.py printed: vLLM 0.32 on the phantom.
server_words/ has the words of other releases, with figures of our own.
"""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rows import each

import ullage
from ullage.explain.servers.differences import NOT_PRINTED, ROUNDING, compare_starts
from ullage.explain.servers.levers import ESTIMATED, find_levers
from ullage.explain.servers.reader import read_server, read_start
from ullage.explain.servers.start import Load, ServerStart
from ullage.facts.families.builtin import find_model
from ullage.ground.errors import SpecError
from ullage.ground.units import GIB

LOGS = Path(__file__).parent / "server_logs"
WORDS = Path(__file__).parent / "server_words"
READY = sorted(path.stem for path in LOGS.glob("*.log") if path.stem not in {"long", "none"})

V0 = (WORDS / "vllm-0.6.log").read_text(encoding="utf-8")
V0_LATER = (WORDS / "vllm-0.7.log").read_text(encoding="utf-8")
V1 = (WORDS / "vllm-0.10.log").read_text(encoding="utf-8")
V1_GRAPHS = (WORDS / "vllm-0.29.log").read_text(encoding="utf-8")
SGLANG = (WORDS / "sglang.log").read_text(encoding="utf-8")
SGLANG_HYBRID = (WORDS / "sglang-hybrid.log").read_text(encoding="utf-8")
SGLANG_LATE = (WORDS / "sglang-post-capture.log").read_text(encoding="utf-8")


FAILURES = {
    "busy": "vllm\nValueError: Free memory on device cuda:0 (3.25/24.00 GiB) on startup is less "
    "than desired GPU memory utilization (0.9, 21.6 GiB).",
    "short": "INFO model_runner.py:1] Loading model weights took 5.00 GB\nValueError: The model's "
    "max seq len (4096) is larger than the maximum number of tokens that can be stored in KV cache "
    "(3664).",
    "pool": "Load weight end. type=M, avail mem=1.00 GB, mem usage=20.00 GB.\nRuntimeError: Not "
    "enough memory. Please try to increase --mem-fraction-static.",
    "step": "INFO vllm\nModel loading took 20.00 GiB memory\ntorch.OutOfMemoryError: CUDA out of "
    "memory. Tried to allocate 1.16 GiB.",
    "cut": "INFO vllm\nModel loading took 20.00 GiB memory\n",
}


def read(text: str) -> ServerStart:
    start = read_start(text)
    assert start is not None
    return start


def test_a_real_start_is_read_to_the_last_part() -> None:
    start = read_server(LOGS / "base.log")
    assert (start.engine, start.version, start.tokens) == ("vllm", "0.32.0", 208_720)
    assert start.max_model_len == 8192 and start.concurrency == 25.48
    parts = {part.name: part.bytes for part in start.parts}
    assert sum(parts.values()) == start.total_bytes == round(44.39 * GIB)
    assert parts["weights"] == 15 * GIB
    assert abs(parts[NOT_PRINTED]) <= 3 * start.grain_bytes


def test_an_estimate_of_graphs_is_no_activation() -> None:
    start = read_server(LOGS / "graphs.log")
    assert start.activation_bytes == pytest.approx(1.00 * GIB, abs=0.01 * GIB)
    assert start.graph_estimate_bytes == round(0.47 * GIB)
    parts = {part.name: part.bytes for part in start.parts}
    assert abs(parts[NOT_PRINTED]) <= 3 * start.grain_bytes


def test_an_estimate_of_graphs_that_is_not_applied_takes_nothing() -> None:
    text = V1_GRAPHS.replace("Available KV cache memory: 3.00", "Available KV cache memory: 4.50")
    start = read(text + "CUDA graph memory profiling is disabled (...)\n")
    assert start.graph_estimate_bytes is None and start.graph_bytes == round(1.2 * GIB)
    assert start.activation_bytes == round(0.82 * GIB)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (V0, {"version": "0.6.4", "weights_bytes": 14 * GIB, "activation_bytes": 2 * GIB,
              "outside_bytes": GIB // 2, "num_blocks": 2611, "tokens": 2611 * 16, "share": 0.9}),
        (V0_LATER, {"asked_bytes": 72 * GIB, "cache_bytes": 55 * GIB, "tokens": 28160 * 16,
                    "weights_bytes": 15 * GIB, "graph_bytes": round(0.3 * GIB)}),
        (V1, {"version": "0.10.2", "tokens": 229_376, "outside_bytes": round(0.56 * GIB),
              "graph_bytes": round(0.6 * GIB), "is_compile_cold": True,
              "spare_bytes": 14711521280}),
        (V1_GRAPHS, {"tokens": 24_576, "outside_bytes": round(0.4 * GIB), "is_compile_cold": False,
                     "graph_estimate_bytes": round(1.5 * GIB), "graph_bytes": round(1.2 * GIB)}),
        (SGLANG, {"engine": "sglang", "tokens": 442_368, "cache_bytes": 54 * GIB, "share": 0.88,
                  "graph_bytes": round(0.9 * GIB), "free_at_end_bytes": round(7.3 * GIB),
                  "model": "m/8b"}),
        (SGLANG_HYBRID, {"state_bytes": round(0.12 * GIB) + round(3.08 * GIB),
                         "cache_bytes": 4 * GIB, "graph_bytes": round(0.75 * GIB)}),
        (SGLANG_LATE, {"tokens": 430_080, "cache_bytes": round(52.5 * GIB),
                       "graph_bytes": round(0.9 * GIB), "free_at_end_bytes": round(9.3 * GIB)}),
    ],
    ids=["0.6", "0.7", "0.10", "0.29", "sglang", "sglang-hybrid", "sglang-post-capture"],
)  # fmt: skip
def test_each_release_says_it_in_its_own_words(text: str, expected: dict[str, object]) -> None:
    start = read(text)
    assert {name: getattr(start, name) for name in expected} == {
        name: pytest.approx(value, abs=2) if isinstance(value, int) else value
        for name, value in expected.items()
    }
    assert start.is_ready and start.failure is None


@pytest.mark.parametrize("text", [V0, V0_LATER, V1, V1_GRAPHS, SGLANG, SGLANG_HYBRID, SGLANG_LATE])
def test_parts_add_up_to_the_device(text: str) -> None:
    start = read(text)
    assert sum(max(0, part.bytes) for part in start.parts) == pytest.approx(
        start.total_bytes, abs=3 * start.grain_bytes
    )


@pytest.mark.parametrize(
    ("name", "what", "remedy"),
    [
        ("long", "131,072 tokens needs 16.00 GiB", "--max-model-len 92320"),
        # 0.35 of the L40S's 44.39 GiB are 2.2 GiB more than 0.3.
        ("none", "nothing is left for the cache: 2.05 GiB are missing",
         "--gpu-memory-utilization 0.35: 2.05 GiB more"),
    ],
)  # fmt: skip
def test_a_real_start_that_fails_is_explained(name: str, what: str, remedy: str) -> None:
    server = ullage.explain_server(LOGS / f"{name}.log")
    assert server.start.failure is not None and server.exit_code == 1
    assert what in server.start.failure.what
    assert server.start.failure.remedies[0] == remedy or remedy in server.start.failure.remedies[0]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("busy", "20.75 GiB of the device's 24.00 GiB"),
        ("short", "holds 3,664 tokens, and one request may have 4,096"),
        ("pool", "nothing is left for the cache"),
        ("step", "out of memory while trying a step"),
        ("cut", "breaks off after the weights"),
    ],
)
def test_failures_are_told_by_the_engines_own_figures(name: str, what: str) -> None:
    failure = read(FAILURES[name]).failure
    assert failure is not None
    assert what in failure.what


@each(
    ("text", "expected"),
    [
        # 0.7 writes the platform's dispatch key, 0.8 its device's name.
        (("INFO executor_base.py:111] # CUDA blocks: 28160, # CPU blocks: 2048\n"
         "INFO executor_base.py:116] Maximum concurrency for 32768 tokens per request: 13.75x\n"),
         {"num_blocks": 28160, "tokens": 450_560, "concurrency": 13.75, "max_model_len": 32768}),
        ("# hpu blocks: 100, # CPU blocks: 20\n", {"num_blocks": 100, "tokens": 1600}),
        ("# CPU blocks: 300, # CPU blocks: 0\n", {"num_blocks": 300}),
        # Full attention beside sliding windows, of two ranks; then the draft's pool.
        (("[2026-01-31 13:50:39 TP1] KV Cache is allocated. #tokens: 300288, K size: 8.00 GB, "
         "V size: 5.50 GB\n[2026-01-31 13:50:39 TP0] KV Cache is allocated. #tokens: 300288, K "
         "size: 8.00 GB, V size: 5.50 GB\n[2026-01-31 13:50:39 TP1] KV Cache is allocated. "
         "#tokens: 375360, K size: 3.25 GB, V size: 2.25 GB\n[2026-01-31 13:51:00 TP1] KV Cache is "
         "allocated. #tokens: 375360, K size: 1.00 GB, V size: 1.00 GB\n"),
         {"engine": "sglang", "tokens": 375_360, "cache_bytes": 19 * GIB}),
        ("[2026-01-31 13:50:39] SWAKVPool mem usage: 19.00 GB, swa size: 3, full size: 4\n",
         {"engine": "sglang", "cache_bytes": 19 * GIB}),
        (("[2026-09-09 11:57:18] Mamba Cache is allocated. max_mamba_cache_size: 48, conv_state "
         "size: 0.25GB, ssm_state size: 6.50GB intermediate_ssm_state_cache size: 2.00GB "
         "intermediate_conv_window_cache size: 0.25GB \n[2026-09-09 11:57:18] KV Cache is "
         "allocated. #tokens: 2618868, K size: 20.00 GB, V size: 20.00 GB\n"),
         {"state_bytes": 9 * GIB, "cache_bytes": 40 * GIB, "tokens": 2_618_868}),
        (("[2026-09-09 11:57:18] Memory pool end. avail mem=3.39 GB\nMamba Cache is allocated. "
         "conv_state size: 0.00 GB, ssm_state size: 0.50 GB\n"), {"state_bytes": GIB // 2}),
    ],
)  # fmt: skip
def test_a_fragment_of_two_lines_is_read(text: str, expected: dict[str, object]) -> None:
    start = read(text)
    assert {name: getattr(start, name) for name in expected} == expected


def test_too_few_blocks_of_states_have_two_remedies() -> None:
    line = "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (969)."
    failure = read(line).failure
    assert failure is not None and "the cache has 969" in failure.what
    assert [remedy.split()[:2] for remedy in failure.remedies] == [
        ["--max-num-seqs", "969,"], ["a", "higher"],
    ]  # fmt: skip
    assert "--gpu-memory-utilization" in failure.remedies[1]


def test_the_last_of_several_starts_counts_and_the_one_before_is_told() -> None:
    logs = {name: (LOGS / f"{name}.log").read_text() for name in ("none", "base", "util85", "long")}
    start = read(logs["none"] + logs["base"])
    assert (start.tokens, start.failure, start.num_starts) == (208_720, None, 2)
    assert start.failure_before is not None and "2.05 GiB are missing" in start.failure_before.what
    start = read(logs["base"] + logs["base"] + logs["util85"])
    assert (start.tokens, start.num_starts, start.failure_before) == (183_264, 3, None)
    start = read(logs["base"] + logs["long"])
    assert start.failure is not None and "131,072 tokens" in start.failure.what
    # The end of a start that failed, then one of SGLang.
    start = read(FAILURES["short"] + "\n" + SGLANG)
    assert (start.tokens, start.num_starts) == (442_368, 2)
    # Ended from outside before anything was loaded: no progress, but the first line once more.
    head = "\n".join(logs["base"].splitlines()[1:4]) + "\n"
    start = read(head + logs["util85"])
    assert (start.num_starts, start.options["gpu_memory_utilization"]) == (2, "0.85")
    assert read(V0).num_starts == read(SGLANG).num_starts == 1


def test_engines_that_share_a_start_are_one() -> None:
    first = V1.replace("EngineCore_DP0 pid=2", "EngineCore_DP1 pid=4")
    assert read(V1 + first).num_starts == 1


@each(
    ("name", "line"),
    [
        ("TGI", "2024-05-01T10:00:00.0Z  INFO text_generation_launcher: Args {"),
        ("TensorRT-LLM", "[TensorRT-LLM][INFO] Memory usage when calculating max tokens in paged"),
        ("Triton Inference Server", "I0101 10:00:00.1 1 model_lifecycle.cc:461] loading: m:1"),
        ("Ollama", ('time=2025-01-01T10:00:00Z level=INFO source=sched.go:450 msg="loaded"\n'
                   "llama_model_loader: loaded meta data with 29 key-value pairs")),
        ("llama.cpp", "llama_model_loader: loaded meta data with 29 key-value pairs"),
        ("llama.cpp", "load_tensors:        CUDA0 model buffer size =  4403.49 MiB"),
        ("LMDeploy", "[TM][INFO] [BlockManager] block_size = 5 MB"),
    ],
)  # fmt: skip
def test_the_log_of_another_server_is_refused_by_its_name(name: str, line: str) -> None:
    # Some mention an engine, or end as one of ours would.
    for more in ("", "Could not import vllm\ntorch.OutOfMemoryError: CUDA out of memory.\n"):
        with pytest.raises(SpecError, match=f"a log of {name}; expected one of vLLM or SGLang"):
            read_start(f"{line}\n{more}")


def test_names_of_other_servers_in_a_log_of_ours_do_not_matter() -> None:
    line = "INFO Using tensorrt_llm kernels; see llama_model_loader, lmdeploy\n"
    assert read(line + V1).tokens == 229_376


def test_an_error_without_its_log_says_no_more_than_it_shows() -> None:
    for words, room in (("CUDA out of memory. Tried to allocate 1.16 GiB.", ": no room for 1.16"),
                        ("CUDA error: out of memory", "")):  # fmt: skip
        failure = read(f'File "/opt/vllm/worker.py"\ntorch.OutOfMemoryError: {words}').failure
        assert failure is not None and failure.what.startswith(f"out of memory{room}")
        assert "while" not in failure.what


def test_a_log_of_nothing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.log"
    path.write_text("hello\n")
    with pytest.raises(SpecError, match="nor a server's log"):
        read_server(path)


def test_a_share_more_gives_its_bytes_in_tokens() -> None:
    start = read_server(LOGS / "base.log")
    levers = {lever.change.split()[0]: lever for lever in find_levers(start)}
    share = levers["--gpu-memory-utilization"]
    assert share.gain_bytes == round(0.03 * start.total_bytes)
    assert share.gain_tokens == pytest.approx(share.gain_bytes / 131072, rel=1e-3)
    assert levers["--kv-cache-dtype"].gain_tokens == start.tokens
    tokens = [lever.gain_tokens for lever in find_levers(start)]
    assert tokens == sorted(tokens, reverse=True)


def test_a_smaller_step_is_counted_with_the_models_configuration() -> None:
    start = read_server(LOGS / "batched16k.log")
    config = find_model("llama-3.1-8b").config
    lever = next(
        lever for lever in find_levers(start, config)
        if lever.change == "--max-num-batched-tokens 4096"
    )  # fmt: skip
    assert lever.basis == ESTIMATED
    # From 16,384 to 2,048 the engine itself gained 12,096 tokens; to 4,096 it is somewhat less.
    assert 0.5 * 12_096 < lever.gain_tokens <= 12_096


def test_fp8_is_no_lever_where_it_is_on() -> None:
    changes = [lever.change for lever in find_levers(read_server(LOGS / "fp8kv.log"))]
    assert not any(change.startswith("--kv-cache-dtype") for change in changes)


@each(("before", "after"), itertools.permutations(READY, 2))
def test_of_any_two_real_starts_95_percent_has_a_name(before: str, after: str) -> None:
    change = compare_starts(read_server(LOGS / f"{before}.log"), read_server(LOGS / f"{after}.log"))
    assert sum(cause.tokens for cause in change.causes) == pytest.approx(change.tokens, abs=8)
    if abs(change.tokens) > 500:  # less than what rounding alone may be
        assert change.named_frac >= 0.95


def test_the_flag_that_took_the_tokens_is_named() -> None:
    change = ullage.diff_servers(LOGS / "base.log", LOGS / "util85.log").change
    assert change.causes[0].why == "gpu_memory_utilization 0.92 -> 0.85"
    assert change.causes[0].tokens == pytest.approx(change.tokens, rel=0.01)


def test_what_no_option_explains_is_said_to_have_no_reason() -> None:
    before = read(V1_GRAPHS)
    after = read(V1_GRAPHS.replace("9.40 GiB for consumed", "10.40 GiB for consumed").replace(
        "Available KV cache memory: 3.00", "Available KV cache memory: 2.00").replace(
        "24,576 tokens", "16,384 tokens"))  # fmt: skip
    change = compare_starts(before, after)
    assert change.causes[0].part == "outside PyTorch" and change.causes[0].why == ""
    assert change.named_frac < 0.05


def test_a_version_takes_tokens_where_no_flag_did() -> None:
    after = V1.replace("v0.10.2", "v0.11.0").replace("1.40 GiB", "2.40 GiB").replace(
        "memory: 10.50", "memory: 9.50").replace("229,376", "207,531")  # fmt: skip
    change = compare_starts(read(V1), read(after))
    assert change.causes[0].why == "vLLM 0.10.2 -> 0.11.0"
    assert {cause.why for cause in change.causes[1:]} <= {ROUNDING}


def test_metrics_tell_cache_and_pressure() -> None:
    page = """# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",gpu_memory_utilization="0.92",\
kv_cache_max_concurrency="4.0",kv_cache_size_tokens="32768",num_gpu_blocks="2048"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.75
vllm:num_requests_running{engine="0",model_name="m"} 12.0
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
vllm:num_preemptions_total{engine="0",model_name="m"} 41.0
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 1000.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 250.0
"""
    start = read(page)
    assert (start.tokens, start.max_model_len, start.share) == (32768, 8192, 0.92)
    assert start.load == Load(0.75, 12, 3, 41, 0.25)


def test_of_several_ranks_the_first_counts() -> None:
    line = next(line for line in V1.splitlines() if "Model loading took" in line)
    other = line.replace("TP0", "TP1").replace("27.50", "30.00")
    assert read(V1.replace(line, f"{line}\n{other}")).weights_bytes == round(27.5 * GIB)


PAGE = """vllm:cache_config_info{block_size="16",gpu_memory_utilization="0.92",\
kv_cache_max_concurrency="4.0",kv_cache_size_tokens="32768",num_gpu_blocks="2048"} 1.0
vllm:kv_cache_usage_perc 0.75
vllm:num_preemptions_total 41.0
"""


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([V0, V0_LATER, V1, V1_GRAPHS, SGLANG, SGLANG_HYBRID, PAGE]),
    st.lists(st.tuples(st.integers(0, 2000), st.sampled_from("0.,-=x{}()'\n G")), max_size=20),
    st.integers(0, 2500),
)
def test_no_damage_to_a_log_is_more_than_a_figure_that_is_missing(
    text: str, changes: list[tuple[int, str]], end: int
) -> None:
    for place, letter in changes:
        text = text[:place] + letter + text[place + 1 :]
    start = read_start(text[:end])
    if start is not None:
        assert all(isinstance(part.bytes, int) for part in start.parts)
        assert all(lever.gain_tokens > 0 for lever in find_levers(start))
        for other in (read(V1), start):
            with contextlib.suppress(SpecError):
                compare_starts(start, other)
