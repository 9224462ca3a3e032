"""`ullage estimate` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ullage.cli import run_cli


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


def test_a_page_that_needs_nothing_else(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    code, out, _ = call(capsys, "gpt2", "--length", "512", "-o", str(page))
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["llama-9"], "neither a file nor a built-in model"),
        (["gpt2"], "length: not given"),
        (["gpt2", "--length", "8", "--optimizer", "adamx"], "optimizer: found 'adamx'"),
        (["gpt2", "--length", "8", "--checkpointing", "some"], "checkpointing: found 'some'"),
        (["gpt2", "--length", "8", "--largest", "batch"], "on which GPU"),
        (["gpt2", "--length", "8", "--offload"], "expected fsdp"),
        (["gpt2", "--length", "8", "--quantize", "nf4"], "add --lora RANK"),
        (["gpt2", "--length", "8", "--library", "keras"], "library: found 'keras'"),
        (["gpt2", "--length", "8", "--torch", "2.15", "--gpu", "v100-16gb"], "take 2.10"),
        (["gpt2", "--length", "8", "-o", "-"], "name /dev/stdout"),
    ],
)
def test_wrong_use_is_told(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    code, out, err = call(capsys, *arguments)
    assert code == 2
    assert not out
    assert message in err


def test_a_mere_number_of_parameters_is_a_floor(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "7B", "--gpu", "h100-80gb")
    assert code == 0
    assert out.startswith("needs at least")


def test_without_a_model_those_built_in_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys)
    assert code == 0
    assert len(out.splitlines()) >= 40


def test_the_section_holds_what_the_command_line_does_not(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ("llama-3.2-1b", "--length", "128", "--pipeline", "2", "--json")
    likely = []
    for stage in "01":
        Path("ullage.toml").write_text(f"[estimate]\nstage = {stage}\n")
        likely.append(json.loads(call(capsys, *arguments)[1])["used_bytes"])
    # The command line holds where both say something.
    assert likely[0] == json.loads(call(capsys, *arguments, "--stage", "0")[1])["used_bytes"]
    code, _, err = call(capsys, *arguments, "--stage", "2")
    assert (code, err) == (2, "ullage: stage: found 2, expected from 0 to 1\n")
    Path("ullage.toml").unlink()
    assert max(likely) == json.loads(call(capsys, *arguments)[1])["used_bytes"]
    assert call(capsys, *arguments, "--stage", "2")[0] == 2
