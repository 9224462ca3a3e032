"""The variables under which vLLM starts: the user's choice of kernels stays."""

from __future__ import annotations

import os

import pytest

from ullage.serve.vllm.environment import prepare


def test_kernels_that_are_compiled_are_left_out_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "environ", {"VLLM_USE_DEEP_GEMM": "1", "HF_HUB_OFFLINE": "0"})
    prepare()
    assert os.environ["VLLM_USE_DEEP_GEMM"] == "1"
    assert os.environ["VLLM_USE_FLASHINFER_SAMPLER"] == "0"
    assert os.environ["HF_HUB_OFFLINE"] == "1"
