"""A search for a server, and a scenario with one, with the real vLLM and a small Llama."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import ullage
from ullage.verbs.check.gate.lock import read_lock

pytestmark = [pytest.mark.phantom, pytest.mark.nightly]

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024,
    "intermediate_size": 2048, "num_hidden_layers": 2, "num_attention_heads": 16,
    "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 32000,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16",
}  # fmt: skip
TRAFFIC = "poisson:rate=10,prompt=400,output=40,duration=10s"
SLO = "ttft=1s,tpot=50ms"


@pytest.fixture(scope="module")
def vllm_python(thin_python: Path) -> Path:
    """An interpreter with vLLM."""
    look = "import importlib.util as u, sys; sys.exit(u.find_spec('vllm') is None)"
    if subprocess.run([str(thin_python), "-c", look], check=False).returncode:
        pytest.skip("not in the environment: vllm")
    return thin_python


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder with the model's configuration."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return folder


def test_what_a_search_answers_was_run(vllm_python: Path, model: Path) -> None:
    command = ("vllm", "serve", str(model), "--enforce-eager")
    result = ullage.smallest(
        command, traffic=TRAFFIC, slo=SLO, gpu="l4,l40s", python=vllm_python
    )  # fmt: skip
    assert result.best is not None and result.best.candidate.gpu.slug == "l4"
    assert result.best.run.goodput_frac >= 0.99
    again = ullage.serve_traffic(
        result.best.words,
        traffic=TRAFFIC,
        gpu="l4",
        python=vllm_python,
        slo=SLO,
        stdout_to_stderr=True,
    )
    assert again.measures.classes[0].goodput_frac == result.best.run.goodput_frac
    assert again.outcome.engine.kv_cache_tokens == result.best.run.tokens
    # The forms of the estimate are within 3 % of the engine's own tokens.
    assert result.best.forecast_tokens == pytest.approx(result.best.run.tokens, rel=0.03)


def test_a_change_that_loses_tokens_fails_the_check(
    vllm_python: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (
        '[scenario.api]\nserve = "vllm serve model --enforce-eager --max-model-len 1024"\n'
        f'traffic = "{TRAFFIC}"\nslo = "{SLO}"\ngpu = "l4"\n'
    )
    path = tmp_path / "ullage.toml"
    path.write_text(text)
    assert ullage.lock(python=vllm_python).exit_code == 0
    served = read_lock(tmp_path / "ullage.lock").scenarios["api"].served
    assert served is not None and served.cache_tokens > 0 and served.good_requests > 0
    path.write_text(text.replace("1024", "1024 --gpu-memory-utilization 0.8"))
    check = ullage.check(python=vllm_python)
    assert check.exit_code == 1
    assert "fewer than the lock asks for" in check.text()
