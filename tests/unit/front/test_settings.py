"""The table [front]: what it says, and what it says wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.rows import each

from ullage.cli import run_cli
from ullage.ground.errors import SpecError
from ullage.operate.front.settings import load_front
from ullage.verbs.check.gate.config import load_configuration

ENGINE = """
[front.engine.a]
url = "http://127.0.0.1:8001"
models = "llama"
cache = "40GiB"
"""
TENANT = '[front.tenant.chat]\nkey_file = "chat"\n'
GOOD = f"[front]{ENGINE}token_bytes = 1000\n{TENANT}weight = 2\ndeadline_s = 5\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "chat").write_text("chat" * 5)
    (tmp_path / "other").write_text("other" * 5)
    return tmp_path


def load(folder: Path, text: str) -> None:
    (folder / "ullage.toml").write_text(text)
    load_front(folder)


def test_what_is_written_and_what_is_assumed(folder: Path) -> None:
    load(folder, GOOD)
    settings = load_front(folder)
    engine, tenant = settings.engines["a"], settings.tenants["chat"]
    assert settings.address.is_loopback and settings.address.port == 8080
    assert (str(engine.address), engine.spec.models) == ("127.0.0.1:8001", ("llama",))
    assert engine.spec.cache_bytes == 40 * 2**30 and engine.spec.footprint.token_bytes == 1000
    assert (tenant.spec.weight, tenant.deadline_s, tenant.key) == (2.0, 5.0, b"chat" * 5)
    assert settings.quantile == 0.9 and not engine.spec.is_bounded


def test_the_bytes_of_a_token_follow_from_the_model(folder: Path) -> None:
    load(folder, f'[front]{ENGINE}architecture = "llama-3.1-8b"\n{TENANT}')
    assert load_front(folder).engines["a"].spec.footprint.token_bytes == 131_072
    load(folder, f'[front]{ENGINE}architecture = "llama-3.1-8b"\nkv = "fp8"\n{TENANT}')
    assert load_front(folder).engines["a"].spec.footprint.token_bytes == 65_536


def test_versions_adapters_and_gpus(folder: Path) -> None:
    more = 'gpu = "g"\nadapters = ["sql"]\nadapter_slots = 2\nadapter_cache = "64MiB"\n'
    gpu = '[front.gpu.g]\ncache = "60GiB"\n[front.model.any]\nllama = 9\nsql = 1\n'
    load(folder, GOOD.replace("token_bytes", f"{more}token_bytes") + gpu)
    settings = load_front(folder)
    spec = settings.engines["a"].spec
    assert spec.models == ("llama", "sql") and spec.adapters == ("sql",)
    assert (spec.adapter_slots, spec.adapter_bytes) == (2, 64 * 2**20)
    assert settings.engines["a"].gpu == "g" and settings.gpus == {"g": 60 * 2**30}
    assert settings.versions == {"any": {"llama": 9.0, "sql": 1.0}}
    assert settings.spare_requests is None


def test_with_max_tokens_reserved_the_whole_cache_is_given_out(folder: Path) -> None:
    load(folder, GOOD.replace("[front]", '[front]\nreserve = "max_tokens"'))
    spec = load_front(folder).engines["a"].spec
    assert spec.is_bounded and spec.margin_frac == 0.0


@each(
    ("text", "problem"),
    [
        ("", "there is no table"),
        (f"[front]\n{TENANT}", "engine has none"),
        (f"[front]{ENGINE}token_bytes = 1\n", "tenant has none"),
        (f"[front]{ENGINE}{TENANT}", "token_bytes or architecture"),
        (
            f'[front]{ENGINE}architecture = "x"\n{TENANT}',
            "ullage.toml:6: front.engine.a.architecture: model: found 'x', which is neither a file",
        ),
        (
            f'[front]{ENGINE}architecture = "llama-3.1-8b"\nkv = "int3"\n{TENANT}',
            "ullage.toml:7: front.engine.a.kv: kv='int3' is not a precision; expected one of fp32",
        ),
        (GOOD.replace("http://127.0.0.1:8001", "https://a:1"), "expected http://HOST:PORT"),
        (GOOD.replace("http://127.0.0.1:8001", "http://u@a:1"), "expected http://HOST:PORT"),
        (GOOD.replace("http://127.0.0.1:8001", "http://a:1/x"), "expected http://HOST:PORT"),
        (GOOD.replace("http://127.0.0.1:8001", "http://a"), "expected http://HOST:PORT"),
        (GOOD.replace('"40GiB"', '"40G"'), "two ways"),
        (GOOD.replace("//127.0.0.1:8001", "//[::1"), "expected http://HOST:PORT"),
        (GOOD.replace(":8001", ":80010"), "expected http://HOST:PORT"),
        (GOOD.replace("weight = 2", "weight = 0"), "above 0"),
        (GOOD.replace("weight = 2", 'trim = "all"'), "expected never or oldest-messages"),
        (GOOD.replace("weight", "weightt"), "did you mean 'weight'"),
        (GOOD.replace("[front]", '[front]\nreserve = "all"'), 'expected "90%"'),
        (GOOD.replace("[front]", '[front]\nlisten = "x:y"'), "expected [HOST:]PORT"),
        (GOOD.replace("[front]", '[front]\nlisten = "0.0.0.0:1"').replace('key_file = "chat"', ""),
         "without a key_file"),
        (GOOD + '[front.tenant.b]\nkey_file = "chat"\n', "the same key"),
        (GOOD + "[front.tenant.b]\n", "without a key_file"),
        (GOOD.replace('"chat"', '"missing"'), "cannot be read"),
        (GOOD.replace('cache = ', 'gpu = "g"\ncache = '), "write [front.gpu.g]"),
        (GOOD + "[front.model.any]\nllama = 1\nother = 1\n", "which no engine has"),
        (GOOD + "[front.model.llama]\nllama = 1\n", "a version's name"),
        (GOOD + "[front.model.any]\n", "has no versions"),
        (GOOD + "[front.model.any]\nllama = 0\n", "above 0"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told(folder: Path, text: str, problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        load(folder, text)
    assert problem in str(caught.value)


def test_other_verbs_leave_the_table_alone(folder: Path) -> None:
    scenario = '[scenario.a]\ncommand = "a.py"\ngpu = "t4"\n'
    load(folder, GOOD + scenario)
    assert [*load_configuration(folder).scenarios] == ["a"]


def test_check_shows_what_is_in_force(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load(folder, GOOD)
    assert run_cli(["front", "--check", "--config", str(folder / "ullage.toml")]) == 0
    assert capsys.readouterr().out == (
        f"configuration: {folder / 'ullage.toml'}\n"
        "engine a: 127.0.0.1:8001, 40.0 GiB of cache for 42,949,672 tokens, llama\n"
        "  no tokenizer: assumes 3 characters a token\n"
        "tenant chat: weight 2, first token: 5 s\n"
        "reserves room for: 90% of answers; assumes max_tokens 1024 where a request does not say\n"
    )
