"""`ullage estimate` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ullage.cli.main import run_cli


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    code = run_cli(["estimate", *arguments])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_answer_is_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "gpt2", "--length", "512", "--gpu", "t4")
    assert code == 0
    assert out.startswith("fits on t4")
    code, out, _ = call(capsys, "llama-3.1-70b", "--length", "512", "--gpu", "t4")
    assert code == 1
    assert out.startswith("does not fit on t4")


def test_the_parts_of_the_document_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = call(capsys, "gpt2", "--length", "512", "--gpu", "t4", "--json", "--which-gpu")
    document = json.loads(out)
    assert document["schema"] == "ullage.estimate/2"
    assert sum(term["bytes"] for term in document["terms"]) == document["used_bytes"]
    assert sum(term["high_bytes"] for term in document["terms"]) == document["used_high_bytes"]
    peak = document["peak"]
    assert sum(peak["by_category"].values()) == peak["allocated_bytes"]
    assert document["which_gpu"]


def test_a_stage_of_a_pipeline_can_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("llama-3.2-1b", "--length", "128", "--pipeline", "2", "--json")
    documents = [
        json.loads(call(capsys, *arguments, "--stage", stage)[1])["used_bytes"] for stage in "01"
    ]
    assert max(documents) == json.loads(call(capsys, *arguments)[1])["used_bytes"]
    code, _, err = call(capsys, *arguments, "--stage", "2")
    assert (code, err) == (2, "ullage: stage: found 2, expected from 0 to 1\n")


def test_serving(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(
        capsys, "qwen3-8b", "--serve", "--gpu", "l40s", "--context", "4096", "--json"
    )
    document = json.loads(out)
    assert (code, document["kind"]) == (0, "serving")
    assert sum(term["bytes"] for term in document["terms"]) == document["capacity_bytes"]


def test_lora_slots_are_a_part_of_the_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("llama-3.1-8b", "--serve", "--gpu", "l40s", "--lora-slots", "2", "--json")
    document = json.loads(call(capsys, *arguments)[1])
    (term,) = [term for term in document["terms"] if term["name"] == "adapters and drafts"]
    own = 2 * 16 * (128_256 + 4096) * 2  # of the embedding and the head
    assert term["bytes"] == document["plan"]["lora_bytes"] == 2 * (80 * 2**20 + own)
    assert (document["plan"]["lora_slots"], document["plan"]["lora_rank"]) == (2, 16)


@pytest.mark.slow
def test_a_server_is_ranked_and_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    code, out, _ = call(
        capsys, "llama-3.1-70b", "--serve", "--users", "4", "--which-gpu", "--html", str(page)
    )
    text = page.read_text()
    document = json.loads(text.partition('id="document">')[2].partition("</script>")[0])
    first = document["which_gpu"][0]
    assert code == 0 and first["count"] == 1 and first["users"] >= 4
    assert first["gpu"] in out and first["gpu"] in text
    assert "http://" not in text and "https://" not in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--serve", "--length", "512"), "--length belongs to training"),
        (("--serve", "--optimizer", "sgd"), "--optimizer belongs to training"),
        (("--serve", "--lora", "8"), "--lora belongs to training"),
        (("--serve", "--pipeline", "2"), "--pipeline belongs to training"),
        (("--serve", "--data", "2"), "--data belongs to training"),
        (("--serve", "--expert-parallel", "2"), "--expert-parallel belongs to training"),
        (("--serve", "--context-parallel", "2"), "--context-parallel belongs to training"),
        (("--serve", "--offload"), "--offload belongs to training"),
        (("--serve", "--checkpointing", "full"), "--checkpointing belongs to training"),
        (("--serve", "--sequence-parallel"), "--sequence-parallel belongs to training"),
        (("--length", "512", "--users", "4"), "--users belongs to serving; add --serve"),
        (("--serve", "--engine", "transformers", "--eager"), "has_graphs: only vLLM reads it"),
        (("--serve", "--engine", "transformers", "--cached"), "is_cached: only vLLM reads it"),
        (("--models", "--json"), "MODEL has no effect on --models"),
    ],
)
def test_an_option_that_would_say_nothing_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str
) -> None:
    code, _, err = call(capsys, "gpt2", *arguments)
    assert code == 2 and says in err


def test_a_page_that_needs_nothing_else(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    code, out, _ = call(capsys, "gpt2", "--length", "512", "--html", str(page))
    text = page.read_text()
    assert code == 0
    assert f"Wrote {page}" in out
    assert "http://" not in text
    assert "https://" not in text
    assert json.loads(text.partition('id="document">')[2].partition("</script>")[0])["terms"]


QLORA = ("--length", "1024", "--checkpointing", "full", "--lora", "16", "--quantize", "nf4-dq")


def test_adapters_make_a_model_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "llama-3.1-8b", "--gpu", "l4", *QLORA[:4])[0] == 1
    code, out, _ = call(capsys, "llama-3.1-8b", "--gpu", "l4", *QLORA)
    assert code == 0 and out.startswith("fits on l4")
    assert "QLoRA 16 of q_proj and v_proj" in " ".join(out.split())


def test_a_whole_recipe_is_one_command(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (
        "llama-3.1-8b", "--gpu", "h100-80gb", "--length", "4096", "--precision", "mixed-bf16",
        "--library", "torchtitan", "--checkpointing", "alternate", "--torch", "2.5",
        "--data", "8", "--sharding", "fsdp", "--json",
    )  # fmt: skip
    recipe = json.loads(call(capsys, *arguments)[1])["recipe"]
    assert (recipe["library"], recipe["checkpointing"]) == ("torchtitan", "alternate")
    assert (recipe["precision"], recipe["torch"]) == ("mixed-bf16", "2.5")


def test_the_gpu_that_was_named_is_in_the_ranking(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("gpt2", "--length", "64", "--gpu", "b300", "--which-gpu")
    _, out, _ = call(capsys, *arguments)
    assert [line for line in out.splitlines() if line.startswith("> b300")]


def test_a_mere_number_of_parameters_is_a_floor(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "7B", "--gpu", "h100-80gb")
    assert code == 0
    assert out.startswith("needs at least")
    code, out, _ = call(capsys, "7B", "--serve", "--gpu", "h100-80gb", "--knobs")
    assert code == 0
    assert out.startswith("may fit") and "only the weights are counted" in out


def test_a_servers_settings_are_those_of_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    settings = ("--engine-version", "0.28.0", "--batched-tokens", "8192", "--max-seqs", "8")
    switches = ("--eager", "--cached", "--memory", "47GB", "--knobs", "--json")
    _, out, _ = call(capsys, "qwen3-8b", "--serve", "--gpu", "l40s", *settings, *switches)
    document = json.loads(out)
    plan = document["plan"]
    assert (plan["engine_version"], plan["max_batched_tokens"], plan["max_seqs"]) == (
        "0.28.0", 8192, 8,
    )  # fmt: skip
    assert (plan["has_graphs"], plan["is_cached"]) == (False, True)
    assert document["capacity_bytes"] == 47 * 10**9
    assert document["knobs"][0]["gain_bytes"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no model was named"),
        (["llama-9"], "neither a file nor a built-in model"),
        (["gpt2"], "length: not given"),
        (["gpt2", "--length", "8", "--optimizer", "adamx"], "optimizer: found 'adamx'"),
        (["gpt2", "--length", "8", "--checkpointing", "some"], "checkpointing: found 'some'"),
        (["gpt2", "--length", "8", "--largest", "batch"], "on which GPU"),
        (["gpt2", "--length", "8", "--offload"], "expected fsdp"),
        (["13B", "--serve", "--which-gpu"], "does not say on which GPU a server fits"),
        (["gpt2", "--serve", "--gpu", "l4", "--engine-version", "0.5"], "known from 0.6 on"),
        (["gpt2", "--length", "8", "--quantize", "nf4"], "add --lora RANK"),
        (["gpt2", "--length", "8", "--library", "keras"], "library: found 'keras'"),
        (["gpt2", "--length", "8", "--torch", "2.15", "--gpu", "v100-16gb"], "take 2.10"),
        (["gpt2", "--length", "8", "-o", "-"], "name /dev/stdout"),
        (["gpt2", "--serve", "--gpu", "l4", "-o", "s.pickle"], "which only a training has"),
        (["whisper-tiny", "--speech", "4", "-o", "s.ullage"], "which only a training has"),
    ],
)
def test_wrong_use_is_told(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    code, out, err = call(capsys, *arguments)
    assert code == 2
    assert not out
    assert message in err


def test_the_models_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "--models")
    assert code == 0
    assert len(out.splitlines()) >= 40


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("whisper-tiny", "--speech", "8:4"), "speech"),
        (("sd15-unet", "--diffusion", "vae=sd-vae,text=clip-vit-l14", "--batch", "2"), "diffusion"),
        (("--index", "hnsw:vectors=10M,width=768,host=64GiB"), "index"),
        (("bge-large-en", "--index", "flat:vectors=1M"), "index"),
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("whisper-tiny", "--speech", "4", "--users", "3"), "--users has no effect on --speech"),
        (("whisper-tiny", "--speech", "4", "--index", "flat"), "--index has no effect"),
        (("whisper-tiny", "--speech", "many"), "expected a number from 1 on"),
        (("sd15-unet", "--diffusion", "offload=model"), "vae is missing"),
        (("--speech", "4"), "no model was named"),
        (("gpt2", "--length", "8", "--draft", "gpt2"), "--draft belongs to serving"),
        (("llama-3.1-8b", "--serve", "--lora-slots", "2:8", "--lora-rank", "4"), "leave out"),
    ],
)
def test_what_has_no_effect_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    code, _, err = call(capsys, *arguments)
    assert code == 2
    assert message in err


def test_a_draft_and_slots_are_in_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("llama-3.1-8b", "--serve", "--gpu", "h100-80gb", "--json")
    plan = json.loads(call(capsys, *arguments, "--draft", "llama-3.2-1b:4")[1])["plan"]
    assert (plan["draft"], plan["speculated"]) == ("llama-3.2-1b", 4)
    plan = json.loads(call(capsys, *arguments, "--lora-slots", "2:64")[1])["plan"]
    assert (plan["lora_slots"], plan["lora_rank"]) == (2, 64)
