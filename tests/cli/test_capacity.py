"""`ullage capacity` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import ullage
from ullage.cli import run_cli


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    code = run_cli(["capacity", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "qwen3-8b", "--gpu", "l40s", "--context", "4096", "--json")
    document = json.loads(out)
    assert (code, document["kind"]) == (0, "serving")
    assert sum(term["bytes"] for term in document["terms"]) == document["capacity_bytes"]


def test_the_answer_is_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "llama-3.1-70b", "--gpu", "t4")
    assert code == 1 and out.startswith("does not fit on t4")


def test_lora_slots_are_a_part_of_the_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("llama-3.1-8b", "--gpu", "l40s", "--lora-slots", "2", "--json")
    document = json.loads(call(capsys, *arguments)[1])
    (term,) = [term for term in document["terms"] if term["name"] == "adapters and drafts"]
    own = 2 * 16 * (128_256 + 4096) * 2  # of the embedding and the head
    assert term["bytes"] == document["plan"]["lora_bytes"] == 2 * (80 * 2**20 + own)
    assert (document["plan"]["lora_slots"], document["plan"]["lora_rank"]) == (2, 16)


@pytest.mark.slow
def test_a_server_is_ranked_and_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    code, out, _ = call(capsys, "llama-3.1-70b", "--users", "4", "--which-gpu", "-o", str(page))
    text = page.read_text()
    document = json.loads(text.partition('id="document">')[2].partition("</script>")[0])
    first = document["which_gpu"][0]
    assert code == 0 and first["count"] == 1 and first["users"] >= 4
    assert first["gpu"] in out and first["gpu"] in text
    assert "http://" not in text and "https://" not in text


def test_a_mere_number_of_parameters_is_a_floor(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "7B", "--gpu", "h100-80gb", "--full")
    assert code == 0
    assert out.startswith("may fit") and "only the weights are counted" in out


def test_a_servers_settings_are_those_of_the_plan(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ullage.toml").write_text(
        '[capacity]\nengine_version = "0.28.0"\nbatched_tokens = 4096\n'
        "eager = true\ncached = true\n"
    )
    # The command line holds where both say something.
    options = (
        "--batched-tokens",
        "8192",
        "--max-seqs",
        "8",
        "--memory",
        "47GB",
        "--full",
        "--json",
    )
    document = json.loads(call(capsys, "qwen3-8b", "--gpu", "l40s", *options)[1])
    plan = document["plan"]
    assert (plan["engine_version"], plan["max_batched_tokens"], plan["max_seqs"]) == (
        "0.28.0", 8192, 8,
    )  # fmt: skip
    assert (plan["has_graphs"], plan["is_cached"]) == (False, True)
    assert document["capacity_bytes"] == 47 * 10**9
    assert document["knobs"][0]["gain_bytes"] > 0


def test_a_draft_and_slots_are_in_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("llama-3.1-8b", "--gpu", "h100-80gb", "--json")
    plan = json.loads(call(capsys, *arguments, "--draft", "llama-3.2-1b:4")[1])["plan"]
    assert (plan["draft"], plan["speculated"]) == ("llama-3.2-1b", 4)
    plan = json.loads(call(capsys, *arguments, "--lora-slots", "2:64")[1])["plan"]
    assert (plan["lora_slots"], plan["lora_rank"]) == (2, 64)


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("whisper-tiny", "--users", "8", "--max-seqs", "4"), "speech"),
        (("sd15-unet", "sd-vae", "clip-vit-l14", "--users", "2"), "diffusion"),
        (("hnsw:vectors=10M,width=768,host=64GiB",), "index"),
        (("flat:vectors=1M,width=bge-large-en",), "index"),
    ],
)
def test_what_is_served_beside_text(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], kind: str
) -> None:
    code, out, _ = call(capsys, *arguments, "--gpu", "h100-80gb", "--json")
    document = json.loads(out)
    assert (code, document["schema"], document["kind"]) == (0, "ullage.estimate/2", kind)
    for place in document["places"]:
        assert sum(term["bytes"] for term in place["terms"]) == place["bytes"]
    code, out, _ = call(capsys, *arguments, "--gpu", "h100-80gb")
    assert out.startswith("fits on h100-80gb: needs ")


def test_an_engine_serves_a_speech_model_as_a_text_model() -> None:
    served = ullage.capacity("whisper-tiny", gpu="l4", engine="vllm")
    assert served.document["kind"] == "serving"


@pytest.mark.parametrize("model", ["whisper-tiny", "flat:vectors=1M,width=768"])
def test_every_kind_has_a_page(model: str) -> None:
    page = ullage.capacity(model, users=2 if model == "whisper-tiny" else None, gpu="l4").html
    assert "<h1" in page and 'id="document">' in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("llama-9",), "neither a file nor a built-in model"),
        (("13B", "--which-gpu"), "does not say on which GPU a server fits"),
        (("gpt2", "--image", "512"), "--image has no effect on a server"),
        (("gpt2", "--slo", "ttft=1s"), "--slo has no effect on a server; give --traffic, or"),
        (("gpt2", "--length", "8"), "no such option"),
        (("gpt2", "-o", "s.pickle"), "would hold a log, which this answer does not have"),
        (("whisper-tiny", "--users", "4", "--kv", "fp8"), "--kv has no effect on speech"),
        (("whisper-tiny", "--gpu", "l4"), "how many streams of speech"),
        (("sd15-unet", "clip-vit-l14"), "found 0 VAEs and 1 others"),
        (("sd15-unet", "sd-vae", "--full"), "--full has no effect on pictures"),
        (("sd15-unet",), "found 0 VAEs"),
        (("gpt2", "sd-vae"), "expected UNet2DConditionModel or DiTTransformer2DModel"),
        (("flat:vectors=1M", "--gpu", "l4"), "width is missing"),
        (("flat:vectors=1M,width=8", "--users", "2"), "--users has no effect on an index"),
        (("gpt2", "-o", "s.txt"), "ends in .txt, which says nothing"),
    ],
)
def test_wrong_use_is_told(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    code, out, err = call(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lora_slots": "2:8", "lora_rank": 4}, "leave out lora_rank"),
        ({"engine": "transformers", "eager": True}, "has_graphs: only vLLM reads it"),
        ({"engine": "transformers", "cached": True}, "is_cached: only vLLM reads it"),
        ({"gpu": "l4", "engine_version": "0.5"}, "known from 0.6 on"),
    ],
)
def test_a_plan_that_is_not_possible_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ullage.SpecError, match=message):
        ullage.capacity("gpt2", **options)  # type: ignore[arg-type]
