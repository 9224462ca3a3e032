"""`ullage gpus`: the table, a group, one GPU, the document, and an unknown name."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner
from tests.rows import each

from ullage.facts.gpus import Gpu, find_gpu, load_catalog, load_estimate_only, sources_of
from ullage.ground.errors import SpecError
from ullage.verbs.gpus.command import gpus_command


@pytest.fixture(autouse=True)
def terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def run_gpus(*arguments: str) -> str:
    result = CliRunner().invoke(gpus_command, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def lines_by_slug(shown: str) -> dict[str, list[str]]:
    return {line.split()[0]: line.split() for line in shown.splitlines() if line.strip()}


def test_the_list_has_a_line_for_each_gpu_within_80_columns() -> None:
    shown = run_gpus()
    lines = lines_by_slug(shown)
    assert max(map(len, shown.splitlines())) <= 80
    for gpu in load_catalog():
        assert lines[gpu.slug][1:3] == [f"{gpu.total_bytes / 2**30:.2f}", "GiB"]
        assert str(gpu.num_multiprocessors) in lines[gpu.slug]
    for other in load_estimate_only():
        assert lines[other.slug][2] == "GB"


def test_the_list_is_grouped_and_each_group_sorted_by_memory() -> None:
    shown = run_gpus("hopper")
    heading, *lines = [line for line in shown.splitlines()[2:] if line][:9]
    assert heading == "data center, Hopper, 9.0"
    totals = [find_gpu(line.split()[0]).total_bytes for line in lines]
    assert len(totals) == 8 and totals == sorted(totals)
    assert "estimate only" not in shown


def test_the_list_marks_what_is_assumed() -> None:
    lines = lines_by_slug(run_gpus())
    assert lines["h100-80gb"][3] == "exact"
    assert lines["h200"][3] == "assumed"


def test_the_memory_of_one_gpu_is_drawn() -> None:
    picture = run_gpus("a100-80gb").splitlines()[:14]
    assert picture == [
        "NVIDIA A100-SXM4-80GB",
        "",
        "          +--------------------+",
        "          | registers 27.0 MiB |            256.0 KiB an SM",
        "        +------------------------+",
        "        | shared memory 17.3 MiB |          19.5 TB/s, 164.0 KiB an SM",
        "      +----------------------------+",
        "      | L1 cache          20.2 MiB |        192.0 KiB an SM, shared memory in it",
        "    +--------------------------------+",
        "    | L2 cache              40.0 MiB |      7219 GB/s",
        "  +------------------------------------+",
        "  | device memory             79.3 GiB |    2039 GB/s, HBM2e",
        "  +------------------------------------+",
        "                    ||",
    ]


@each("gpu", load_catalog(), name=lambda gpu: gpu.slug)
def test_every_picture_fits_into_80_columns(gpu: Gpu) -> None:
    shown = run_gpus(gpu.slug)
    picture = shown.split("\nfigure")[0].splitlines()
    assert max(map(len, picture)) <= 80
    assert ("NVLink" in "".join(picture)) == (gpu.nvlink_bytes_per_s is not None)


def test_one_gpu_is_shown_with_every_source() -> None:
    shown = run_gpus("NVIDIA H100 80GB HBM3")
    assert "85,028,896,768 bytes" in shown
    for sources in sources_of(find_gpu("h100-80gb")).values():
        assert all(source.url in shown for source in sources)
    too_long = [line for line in shown.splitlines() if len(line) > 80]
    assert all(line.lstrip().startswith("https://") for line in too_long)


def test_a_source_that_was_not_opened_is_marked() -> None:
    shown = run_gpus("h100")
    assert re.search(r"\d\* NVIDIA, H100 Tensor Core GPU, product page", shown)
    assert re.search(r"\d  deviceQuery on H100 80GB HBM3", shown)


def test_each_figure_has_the_numbers_of_its_sources() -> None:
    shown = run_gpus("h100")
    gpu = find_gpu("h100-80gb")
    (line,) = [line for line in shown.splitlines() if line.startswith("SMs ")]
    assert line.split()[:2] == ["SMs", "132"]
    titles = [
        re.search(rf"^  {number:>2}[ *] (.*)$", shown, re.MULTILINE)[1]  # type: ignore[index]
        for number in map(int, line.split()[2:])
    ]
    assert titles == [source.title for source in sources_of(gpu)["num_multiprocessors"]]


def test_a_gpu_for_estimates_says_so() -> None:
    shown = run_gpus("mi300x")
    assert "`ullage run` cannot play it" in shown
    assert "192 GB HBM3" in shown
    assert "36, 48, 64, 128 GB LPDDR5X, shared" in run_gpus("Apple M4 Max")


def test_the_document_holds_the_figures_and_their_sources() -> None:
    document = json.loads(run_gpus("--json"))
    assert document["schema"] == "ullage.gpus/1"
    assert [entry["slug"] for entry in document["gpus"]] == [gpu.slug for gpu in load_catalog()]
    for entry in document["gpus"] + document["estimate_only"]:
        assert all(key in document["sources"] for ids in entry["sources"].values() for key in ids)
    for entry in document["gpus"]:
        assert entry["total_bytes"] == find_gpu(entry["slug"]).total_bytes


def test_the_document_keeps_gpus_without_cuda_apart() -> None:
    document = json.loads(run_gpus("amd", "--json"))
    assert document["gpus"] == []
    (entry,) = [e for e in document["estimate_only"] if e["slug"] == "mi300x"]
    assert entry["bandwidth_bytes_per_s"] == 5_300_000_000_000
    assert entry["segment"] == "data center"


def test_the_document_has_the_memory_levels_and_the_rates() -> None:
    (entry,) = json.loads(run_gpus("t4", "--json"))["gpus"]
    levels = {level["name"]: level for level in entry["memory_levels"]}
    assert levels["device memory"]["bytes"] == entry["total_bytes"]
    assert levels["L2 cache"] == {"name": "L2 cache", "bytes": 4 << 20, "bytes_per_s": None}
    assert entry["tensor_ops_per_s"]["bf16"] is None
    assert entry["tensor_ops_per_s"]["fp16"] == 40 * 1_590_000_000 * 1024


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
