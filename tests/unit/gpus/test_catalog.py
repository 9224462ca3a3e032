"""The catalogue: every figure sourced and plausible, every GPU found under each of its names."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from importlib import resources

import pytest

from ullage.errors import SpecError
from ullage.gpus import Gpu, find_gpu, load_catalog, sources_of
from ullage.units import GIB, MIB

GPUS = load_catalog()
CAPABILITIES = {(7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)}
WANTED = {
    "t4", "v100-32gb", "a10g", "a100-40gb", "a100-80gb", "l4", "l40s",
    "rtx-3090", "rtx-4090", "rtx-5090", "h100-80gb", "h200", "b200",
}  # fmt: skip
# GPU, memory outside PyTorch in use by one process without NCCL, in MiB: bare contexts read with
# nothing else loaded, and what the out-of-memory messages among the sources leave for the context.
CONTEXTS_SEEN = [
    ("rtx-5090", 506),
    ("t4", 99),
    ("rtx-5090", 594),
    ("rtx-4090", 473),
    ("h100-nvl", 676),
    ("b200", 842),
]

each_gpu = pytest.mark.parametrize("gpu", GPUS, ids=[gpu.slug for gpu in GPUS])


def test_the_gpus_that_people_train_on_are_there() -> None:
    assert {gpu.slug for gpu in GPUS} >= WANTED


@each_gpu
def test_every_figure_has_a_source(gpu: Gpu) -> None:
    found = sources_of(gpu)
    assert set(found) == {field.name for field in fields(Gpu)} - {"slug", "aliases"}
    for figure, sources in found.items():
        assert sources, figure
        assert all(source.title and source.url.startswith("https://") for source in sources)


def test_every_source_is_used() -> None:
    text = resources.files("ullage.gpus").joinpath("catalog.toml").read_text(encoding="utf-8")
    used = {s.id for gpu in GPUS for sources in sources_of(gpu).values() for s in sources}
    assert used == set(tomllib.loads(text)["sources"])


@each_gpu
def test_slugs_are_plain_and_capabilities_known(gpu: Gpu) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", gpu.slug)
    assert gpu.compute_capability in CAPABILITIES


@each_gpu
def test_a_value_lies_within_its_interval(gpu: Gpu) -> None:
    assert gpu.total_low_bytes <= gpu.total_bytes <= gpu.total_high_bytes
    assert 0 < gpu.context_low_bytes < gpu.context_bytes < gpu.context_high_bytes


@each_gpu
def test_cuda_reports_a_little_less_than_the_box_says(gpu: Gpu) -> None:
    nominal_gib = int(gpu.nominal_size.removesuffix(" GB"))
    assert 0.9 * nominal_gib * GIB < gpu.total_low_bytes
    assert gpu.total_high_bytes < nominal_gib * GIB
    assert gpu.total_high_bytes - gpu.total_low_bytes < 0.02 * gpu.total_bytes


@each_gpu
def test_a_rounded_reading_is_not_called_exact(gpu: Gpu) -> None:
    """Devices report whole pages of 64 KiB, which a total that was rounded misses by chance."""
    if gpu.is_total_exact:
        assert gpu.total_bytes % 65536 == 0
    else:
        assert gpu.total_low_bytes < gpu.total_high_bytes


@each_gpu
def test_bandwidth_is_what_clock_and_bus_give(gpu: Gpu) -> None:
    """Double data rate: two transfers a clock. Makers round, and leave some room on HBM."""
    expected = 2 * gpu.memory_clock_khz * 1000 * gpu.memory_bus_bits // 8
    assert gpu.bandwidth_bytes_per_s == pytest.approx(expected, rel=0.035)


@each_gpu
def test_shared_memory_of_a_block_is_that_of_the_sm_less_what_cuda_keeps(gpu: Gpu) -> None:
    """CUDA keeps 1 KiB for each block from capability 8.0 on, and nothing before it."""
    kept = 1024 if gpu.compute_capability >= (8, 0) else 0
    assert gpu.shared_bytes_per_block_optin == gpu.shared_bytes_per_multiprocessor - kept


@each_gpu
def test_contexts_follow_the_rule_that_the_file_states(gpu: Gpu) -> None:
    bare = 2048 * gpu.threads_per_multiprocessor * gpu.num_multiprocessors
    assert gpu.context_low_bytes == bare * 15 // 16 // MIB * MIB
    assert gpu.context_bytes == bare + 80 * MIB
    assert gpu.context_high_bytes == bare + 320 * MIB


@pytest.mark.parametrize(("slug", "mib"), CONTEXTS_SEEN)
def test_contexts_that_were_seen_lie_within_the_interval(slug: str, mib: int) -> None:
    gpu = find_gpu(slug)
    assert gpu.context_low_bytes <= mib * MIB <= gpu.context_high_bytes


@each_gpu
def test_a_gpu_is_found_under_each_of_its_names(gpu: Gpu) -> None:
    for name in (gpu.slug, gpu.name, gpu.name.upper(), gpu.slug.replace("-", " "), *gpu.aliases):
        assert find_gpu(name) is gpu


def test_no_two_gpus_share_a_name() -> None:
    names = [n.lower() for gpu in GPUS for n in (gpu.slug, gpu.name, *gpu.aliases)]
    assert len(names) == len(set(names))


def test_the_h100_is_the_sxm5() -> None:
    gpu = find_gpu("h100-80gb")
    assert (gpu.name, gpu.form) == ("NVIDIA H100 80GB HBM3", "SXM5")
    assert gpu.compute_capability == (9, 0)
    assert gpu.num_multiprocessors == 132


@pytest.mark.parametrize(
    ("name", "offer"),
    [
        ("h100-80", "did you mean h100-80gb"),
        ("h10O-80gb", "did you mean h100-80gb"),
        ("a100", "did you mean a100-40gb or a100-80gb?"),
        ("RTX 4o90", "rtx-4090"),
    ],
)
def test_an_unknown_name_gets_the_nearest_ones(name: str, offer: str) -> None:
    with pytest.raises(SpecError) as refusal:
        find_gpu(name)
    assert repr(name) in str(refusal.value)
    assert offer in str(refusal.value)


@pytest.mark.parametrize("name", ["", "abacus"])
def test_a_name_like_no_other_gets_the_way_to_list_all(name: str) -> None:
    with pytest.raises(SpecError, match="`ullage gpus` lists all") as refusal:
        find_gpu(name)
    assert "did you mean" not in str(refusal.value)
