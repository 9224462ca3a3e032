"""What vLLM starts with: variables, of which the user's choice of kernels stays, and a
configuration that names the model's class.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ullage.operate.serve.vllm import entrance
from ullage.operate.serve.vllm.environment import prepare


def test_kernels_that_are_compiled_are_left_out_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "environ", {"VLLM_USE_DEEP_GEMM": "1", "HF_HUB_OFFLINE": "0"})
    prepare()
    assert os.environ["VLLM_USE_DEEP_GEMM"] == "1"
    assert os.environ["VLLM_USE_FLASHINFER_SAMPLER"] == "0"
    assert os.environ["HF_HUB_OFFLINE"] == "1"


def test_what_is_compiled_is_kept_where_the_run_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    entrance._keep_compiled(None)
    assert os.environ == {}
    entrance._keep_compiled("/kept")
    assert os.environ == {
        "VLLM_CACHE_ROOT": "/kept", "TORCHINDUCTOR_CACHE_DIR": "/kept/inductor",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "architectures"),
    [
        ({"model_type": "llama"}, ["LlamaForCausalLM"]),
        ({"model_type": "llama", "architectures": ["Mine"]}, ["Mine"]),
        ({"model_type": "unheard-of"}, None),
    ],
)
def test_a_class_is_named_where_there_is_none(
    given: dict[str, object],
    architectures: list[str] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = SimpleNamespace(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES={"llama": "LlamaForCausalLM"})
    monkeypatch.setitem(sys.modules, "transformers.models.auto.modeling_auto", known)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(given), encoding="utf-8")
    entrance._complete(config)
    found = json.loads(config.read_text(encoding="utf-8"))
    assert found.pop("architectures", None) == architectures
    assert found["model_type"] == given["model_type"]
