"""`ullage gpus`: the table, one GPU, the document, and an unknown name."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from ullage.cli.gpus import gpus_command
from ullage.errors import SpecError
from ullage.gpus import find_gpu, load_catalog, sources_of


@pytest.fixture(autouse=True)
def terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def run_gpus(*arguments: str) -> str:
    result = CliRunner().invoke(gpus_command, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_the_list_has_a_line_for_each_gpu_within_80_columns() -> None:
    lines = run_gpus().splitlines()
    assert max(map(len, lines)) <= 80
    for gpu in load_catalog():
        (line,) = [line for line in lines if line.split()[:1] == [gpu.slug]]
        assert f"{gpu.total_bytes / 2**30:.2f} GiB" in line
        assert line.endswith(str(gpu.num_multiprocessors))


def test_the_list_marks_what_is_assumed() -> None:
    basis = {line.split()[0]: line.split()[3] for line in run_gpus().splitlines()[1:16]}
    assert basis["h100-80gb"] == "exact"
    assert basis["h200"] == "assumed"


def test_one_gpu_is_shown_with_every_source() -> None:
    shown = run_gpus("NVIDIA H100 80GB HBM3")
    assert "85,028,896,768 bytes" in shown
    for sources in sources_of(find_gpu("h100-80gb")).values():
        assert all(source.url in shown for source in sources)
    too_long = [line for line in shown.splitlines() if len(line) > 80]
    assert all(line.lstrip().startswith("https://") for line in too_long)


def test_the_document_holds_the_figures_and_their_sources() -> None:
    document = json.loads(run_gpus("--json"))
    assert document["schema"] == "ullage.gpus/1"
    assert [entry["slug"] for entry in document["gpus"]] == [gpu.slug for gpu in load_catalog()]
    for entry in document["gpus"]:
        assert entry["total_bytes"] == find_gpu(entry["slug"]).total_bytes
        assert all(key in document["sources"] for ids in entry["sources"].values() for key in ids)


def test_the_document_says_what_is_assumed() -> None:
    basis = {e["slug"]: e["basis"] for e in json.loads(run_gpus("--json"))["gpus"]}
    assert basis["h100-80gb"] == {"total_bytes": "exact", "context_bytes": "assumed"}
    assert basis["b200"] == {"total_bytes": "assumed", "context_bytes": "assumed"}


def test_the_document_of_one_gpu_has_the_same_form() -> None:
    document = json.loads(run_gpus("h100", "--json"))
    (entry,) = [e for e in json.loads(run_gpus("--json"))["gpus"] if e["slug"] == "h100-80gb"]
    assert document["gpus"] == [entry]


def test_an_unknown_gpu_is_one_message() -> None:
    with pytest.raises(SpecError, match="did you mean h100-80gb"):
        CliRunner().invoke(gpus_command, ["h100-80"], catch_exceptions=False)
