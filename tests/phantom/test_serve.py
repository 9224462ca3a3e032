"""`ullage serve` with the real vLLM, if the environment has it: a small Llama."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.phantom, pytest.mark.nightly]

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024,
    "intermediate_size": 2048, "num_hidden_layers": 2, "num_attention_heads": 16,
    "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 32000,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16",
}  # fmt: skip
MAIN = "from ullage.cli import main; main()"
BLOCKS = 160
"""2,560 tokens: a request of max_model_len and a little more."""
TRAFFIC = (
    "sessions:rate=2,prompt=150,output=60,turns=3,think=2,duration=20s"
    "+poisson:rate=20,prompt=400,output=80,duration=20s"
    "+documents:rate=0.1,prompt=3000,output=10,duration=20s"
)
TIMEOUT_S = 3600
Serve = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def serve(thin_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Serve:
    """One run with further words before and after the command's `--`; its document."""
    look = "import importlib.util as u, sys; sys.exit(u.find_spec('vllm') is None)"
    if subprocess.run([str(thin_python), "-c", look], check=False).returncode:
        pytest.skip("not in the environment: vllm")
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")

    def run(options: Sequence[str] = (), words: Sequence[str] = ()) -> dict[str, Any]:
        done = subprocess.run(
            [
                sys.executable, "-c", MAIN, "serve", "--gpu", "h100-80gb", "--traffic", TRAFFIC,
                "--slo", "ttft=1s,tpot=50ms", "--json", *options, "--python", str(thin_python),
                "--", "vllm", "serve", str(folder), "--max-model-len", "2048",
                "--max-num-seqs", "64",
                *words,
            ],
            check=False, capture_output=True, text=True, timeout=TIMEOUT_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    return run


def test_the_engine_answers_all_that_it_does_not_refuse_and_two_runs_are_alike(
    serve: Serve,
) -> None:
    words = ("--enforce-eager", "--num-gpu-blocks-override", str(BLOCKS))
    first, again = serve((), words), serve((), words)
    for document in (first, again):
        del document["real_s"]
    assert first == again
    assert first["engine"]["num_blocks"] == BLOCKS
    # Documents are beyond max_model_len; everything else is answered.
    by_name = {row["name"]: row for row in first["classes"]}
    assert first["num_rejected"] == by_name["documents"]["num_requests"] > 0
    assert first["num_answered"] + first["num_rejected"] == by_name["all"]["num_requests"]


def test_the_default_start_has_graphs_and_serves_at_several_loads(
    serve: Serve, tmp_path: Path
) -> None:
    page = tmp_path / "served.html"
    document = serve(("--cached", "--loads", "0.5,4", "-o", str(page)))
    engine, cache = document["engine"], document["cache"]
    # A start that compiles takes no less for its step than one that finds what was compiled.
    assert document["first_start"]["weights_bytes"] == engine["weights_bytes"]
    assert document["first_start"]["kv_cache_bytes"] <= engine["kv_cache_bytes"]
    assert engine["has_graphs"]
    assert [point["load"] for point in document["curve"]["points"]] == [0.5, 1, 4]
    at_one = document["curve"]["points"][1]
    assert at_one["classes"][0] == document["classes"][0]
    assert "<h2>By load</h2>" in page.read_text(encoding="utf-8")
    # The tokens are whole blocks of the bytes: two layers of keys and values, four heads of 64.
    assert engine["block_bytes"] == 2 * 2 * 4 * 64 * 2 * engine["block_tokens"]
    assert engine["num_blocks"] == engine["kv_cache_bytes"] // engine["block_bytes"]
    assert cache["low_bytes"] < cache["bytes"] < engine["kv_cache_bytes"]
    # A step reads the weights at least once, and not several times.
    weights_s = engine["weights_bytes"] / 3.35e12
    assert weights_s < document["step_times"]["decode"]["seconds"][0] < 30 * weights_s


def test_blocks_that_went_to_the_host_come_back(serve: Serve) -> None:
    words = ("--enforce-eager", "--num-gpu-blocks-override", str(BLOCKS))
    without, offloaded = serve((), words), serve((), (*words, "--kv-offloading-size", "1"))
    assert without["stored_bytes"] == without["loaded_bytes"] == 0
    assert offloaded["stored_bytes"] > offloaded["loaded_bytes"] > 0
    assert offloaded["loaded_bytes"] % offloaded["engine"]["block_bytes"] == 0
    assert offloaded["prefix_hit_frac"] > without["prefix_hit_frac"]
    assert offloaded["num_answered"] == without["num_answered"] and offloaded["num_stuck"] == 0


def test_transformers_preempts_answers_all_and_two_runs_are_alike(
    thin_python: Path, tmp_path: Path
) -> None:
    look = "import importlib.util as u, sys; sys.exit(u.find_spec('transformers') is None)"
    if subprocess.run([str(thin_python), "-c", look], check=False).returncode:
        pytest.skip("not in the environment: transformers")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")

    def run() -> dict[str, Any]:
        done = subprocess.run(
            [
                sys.executable, "-c", MAIN, "serve", "--gpu", "h100-80gb", "--traffic",
                "poisson:rate=200,prompt=500,output=200,duration=1s", "--loads", "1.0001",
                "--json", "--python", str(thin_python), "--", "transformers", "serve",
                str(tmp_path),
                "--continuous-batching", "--cb-num-blocks", "24",
            ],
            check=False, capture_output=True, text=True, timeout=TIMEOUT_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    first, again = run(), run()
    for document in (first, again):
        del document["real_s"]
    assert first == again
    assert (first["engine"]["name"], first["engine"]["num_blocks"]) == ("transformers", 24)
    assert first["num_answered"] == first["traffic"]["num_requests"]
    assert first["num_preemptions"] > 0
    # The cache is empty again before the second load.
    rates = [point["requests_per_s"] for point in first["curve"]["points"]]
    assert rates[1] == pytest.approx(rates[0], rel=0.01)
    tokens = first["output_tokens_per_s"] * first["duration_s"]
    assert tokens == pytest.approx(first["traffic"]["output_tokens"])
