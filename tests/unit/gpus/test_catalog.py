"""The catalogue: every figure sourced and plausible, every GPU found under each of its names."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from importlib import resources

import pytest
from tests.rows import each

from ullage.facts.gpus import (
    EstimateOnlyGpu,
    Gpu,
    Segment,
    find_entry,
    find_gpu,
    find_group,
    load_catalog,
    load_estimate_only,
    sources_of,
)
from ullage.facts.gpus.catalog import _row, _row_texts, find_by_device
from ullage.ground.errors import SpecError
from ullage.ground.units import GB, GIB, MIB
from ullage.players.phantom.device import choose_device

GPUS = load_catalog()
OTHERS = load_estimate_only()
CAPABILITIES = {
    (6, 0), (6, 1), (7, 0), (7, 5), (8, 0), (8, 6), (8, 7), (8, 9),
    (9, 0), (10, 0), (10, 3), (11, 0), (12, 0), (12, 1),
}  # fmt: skip
WANTED = {
    "p100-16gb", "p40", "v100-16gb", "v100-32gb", "t4", "a10", "a10g", "a30", "a40", "a100-40gb",
    "a100-80gb", "l4", "l40s", "h100-80gb", "h100-pcie", "h100-nvl", "h200", "b200", "gb200",
    "b300",
    "gtx-1080-ti", "titan-v", "rtx-2060", "rtx-2080-ti", "rtx-3060", "rtx-3090", "rtx-4060",
    "rtx-4090", "rtx-5060", "rtx-5090", "rtx-a6000", "rtx-6000-ada", "rtx-pro-6000",
    "quadro-rtx-8000", "jetson-agx-orin-64gb", "jetson-agx-thor", "gb10",
}  # fmt: skip
# GPU, memory outside PyTorch in use by one process without NCCL, in MiB: bare contexts read with
# nothing else loaded, and what the out-of-memory messages among the sources leave for the context.
CONTEXTS_SEEN = [
    ("rtx-5090", 506),
    ("rtx-6000-ada", 426),
    ("rtx-4060-ti-16gb", 107),
    ("rtx-pro-6000", 555),
    ("t4", 99),
    ("rtx-5090", 594),
    ("rtx-4090", 473),
    ("h100-nvl", 676),
    ("b200", 842),
]
# Dense rates in 10^12 operations a second that NVIDIA prints in white papers and data sheets, for
# GPUs whose rates the catalogue reckons from clock and SMs.
PRINTED_RATES = [
    ("t4", "fp16", 65), ("t4", "int8", 130), ("titan-rtx", "fp16", 130.5),
    ("rtx-2080-ti", "fp16", 53.8), ("a10", "fp16", 125), ("a10", "int8", 250),
    ("rtx-3090", "fp16", 71), ("rtx-3090", "tf32", 35.6), ("rtx-3090", "int8", 284),
    ("rtx-3080-10gb", "fp16", 59.5), ("rtx-a6000", "fp16", 154.8), ("rtx-a4000", "fp16", 76.7),
    ("l4", "fp16", 121), ("l4", "fp8", 242.5), ("rtx-4090", "fp16", 165.2),
    ("rtx-4090", "fp8", 330.3), ("rtx-4090", "int8", 660.6), ("rtx-6000-ada", "fp8", 728.5),
    ("rtx-5090", "fp16", 209.5), ("rtx-5090", "fp4", 1676), ("rtx-5080", "fp4", 900.5),
    ("rtx-5070", "fp4", 494), ("rtx-pro-6000", "fp16", 503.8), ("rtx-pro-6000", "fp4", 2015.2),
    ("jetson-agx-orin-64gb", "int8", 85),
]  # fmt: skip

each_gpu = each("gpu", GPUS, name=lambda gpu: gpu.slug)
each_entry = each("entry", [*GPUS, *OTHERS], name=lambda entry: entry.slug)


def nominal_bytes(gpu: Gpu) -> int:
    """What a box calls GB is GiB for memory."""
    return int(gpu.nominal_size.removesuffix(" GB")) * GIB


def names_of(entry: Gpu | EstimateOnlyGpu) -> tuple[str, ...]:
    return (entry.slug, entry.name, *entry.aliases)


def test_the_gpus_that_people_train_on_are_there() -> None:
    assert {gpu.slug for gpu in GPUS} >= WANTED
    assert len(GPUS) >= 90


def test_each_generation_and_each_market_is_there() -> None:
    assert {gpu.compute_capability for gpu in GPUS} == CAPABILITIES
    assert {gpu.segment for gpu in GPUS} == set(Segment)


@each_entry
def test_every_figure_has_a_source(entry: Gpu | EstimateOnlyGpu) -> None:
    found = sources_of(entry)
    names = {field.name for field in fields(type(entry))}
    assert set(found) == names - {"slug", "aliases", "measured"}
    for figure, sources in found.items():
        assert sources, figure
        assert all(source.title and source.url.startswith("https://") for source in sources)
        assert not any("{}" in source.url or " " in source.url for source in sources)


def test_every_source_is_used() -> None:
    text = resources.files("ullage.facts.gpus").joinpath("sources.toml").read_text(encoding="utf-8")
    entries = (*GPUS, *OTHERS)
    used = {s.id for entry in entries for sources in sources_of(entry).values() for s in sources}
    assert {key for key in used if ":" not in key} == set(tomllib.loads(text)["source"])


def test_what_cuda_reports_was_read_and_not_cited_from_memory() -> None:
    for gpu in GPUS:
        assert all(source.is_opened for source in sources_of(gpu)["total_bytes"]), gpu.slug


@each_entry
def test_slugs_are_plain(entry: Gpu | EstimateOnlyGpu) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", entry.slug)


@each_gpu
def test_a_value_lies_within_its_interval(gpu: Gpu) -> None:
    assert gpu.total_low_bytes <= gpu.total_bytes <= gpu.total_high_bytes
    assert 0 < gpu.context_low_bytes < gpu.context_bytes < gpu.context_high_bytes


@each_gpu
def test_cuda_reports_a_little_less_than_the_box_says(gpu: Gpu) -> None:
    """With ECC a tenth less on graphics memory; the firmware of a module keeps as much."""
    least = 0.88 if gpu.segment is Segment.EMBEDDED else 0.9
    assert least * nominal_bytes(gpu) < gpu.total_low_bytes
    assert gpu.total_high_bytes <= nominal_bytes(gpu)


@each_gpu
def test_an_interval_is_narrow(gpu: Gpu) -> None:
    """Drivers differ by up to 2 %; what is taken from GPUs alike is twice as wide."""
    is_from_others = gpu.total_note.startswith("no reading found")
    width = gpu.total_high_bytes - gpu.total_low_bytes
    assert width < (0.045 if is_from_others else 0.0201) * gpu.total_bytes
    assert is_from_others <= (not gpu.is_total_exact)


@each_gpu
def test_a_rounded_reading_is_not_called_exact(gpu: Gpu) -> None:
    """Cards report whole pages of 64 KiB, modules of 4 KiB, which a rounded total misses."""
    if gpu.is_total_exact:
        page = 4096 if gpu.segment is Segment.EMBEDDED else 65536
        assert gpu.total_bytes % page == 0
    else:
        assert gpu.total_low_bytes < gpu.total_high_bytes


def test_a_total_from_gpus_alike_encloses_theirs_scaled() -> None:
    made, one, two = (find_gpu(s) for s in ("rtx-5000-ada", "rtx-4000-ada", "rtx-6000-ada"))
    for other in (one, two):
        scaled = other.total_bytes * nominal_bytes(made) / nominal_bytes(other)
        assert made.total_low_bytes + 0.0099 * nominal_bytes(made) < scaled < made.total_high_bytes
    assert made.total_note == (
        "no reading found; from rtx-4000-ada and rtx-6000-ada, whose memory is alike"
    )


@each_gpu
def test_bandwidth_is_what_clock_and_bus_give(gpu: Gpu) -> None:
    """Double data rate: two transfers a clock. Makers round, and leave some room on HBM."""
    if gpu.memory_clock_khz is not None and gpu.memory_bus_bits is not None:
        expected = 2 * gpu.memory_clock_khz * 1000 * gpu.memory_bus_bits // 8
        room = 0.035 if gpu.memory_type.startswith("HBM") else 0.02
        assert gpu.bandwidth_bytes_per_s == pytest.approx(expected, rel=room)


@each_gpu
def test_the_data_rate_is_one_that_its_memory_has(gpu: Gpu) -> None:
    """Bits a pin and second, in 10^9; an oracle for bandwidth and bus where no clock was read."""
    if gpu.memory_bus_bits is None:
        return
    rate = 8 * gpu.bandwidth_bytes_per_s / gpu.memory_bus_bits / 1e9
    least, most = {
        "GDDR5": (5, 9), "GDDR5X": (10, 11.5), "GDDR6": (9.9, 20.1), "GDDR6X": (18.9, 23.1),
        "GDDR7": (24, 32), "HBM2": (1.4, 2.5), "HBM2e": (3, 3.3), "HBM3": (5, 5.3),
        "HBM3e": (6, 8.1), "LPDDR5": (4.2, 6.5), "LPDDR5X": (8, 9),
    }[gpu.memory_type]  # fmt: skip
    assert least < rate < most


@each_gpu
def test_a_cache_is_of_a_plausible_size(gpu: Gpu) -> None:
    assert gpu.l1_bytes_per_multiprocessor * gpu.num_multiprocessors == gpu.l1_bytes
    if gpu.l2_bytes is not None:
        assert MIB <= gpu.l2_bytes <= 128 * MIB
        assert gpu.l2_bytes % (256 << 10) == 0
    if gpu.clock_khz is not None:
        assert 600_000 <= gpu.clock_khz <= 2_700_000


@each_gpu
def test_shared_memory_of_a_block_is_that_of_the_sm_less_what_cuda_keeps(gpu: Gpu) -> None:
    """CUDA keeps 1 KiB for each block from 8.0 on; before 7.0 no block gets more than 48 KiB."""
    if gpu.compute_capability < (7, 0):
        assert gpu.shared_bytes_per_block_optin == 48 << 10
        return
    kept = 1024 if gpu.compute_capability >= (8, 0) else 0
    assert gpu.shared_bytes_per_block_optin == gpu.shared_bytes_per_multiprocessor - kept
    assert gpu.shared_bytes_per_multiprocessor <= gpu.l1_bytes_per_multiprocessor


@each_gpu
def test_contexts_follow_the_rule_that_the_file_states(gpu: Gpu) -> None:
    bare = 2048 * gpu.threads_per_multiprocessor * gpu.num_multiprocessors
    assert gpu.context_low_bytes == bare * 15 // 16 // MIB * MIB
    assert gpu.context_bytes == bare + 80 * MIB
    assert gpu.context_high_bytes == bare + 320 * MIB


@each(("slug", "mib"), CONTEXTS_SEEN)
def test_contexts_that_were_seen_lie_within_the_interval(slug: str, mib: int) -> None:
    gpu = find_gpu(slug)
    assert gpu.context_low_bytes <= mib * MIB <= gpu.context_high_bytes


@each(("slug", "precision", "tera"), PRINTED_RATES)
def test_reckoned_rates_are_those_that_are_printed(slug: str, precision: str, tera: float) -> None:
    rate = getattr(find_gpu(slug).tensor_ops_per_s, precision)
    assert rate == pytest.approx(tera * 1000 * GB, rel=0.01)


@each_gpu
def test_a_gpu_has_the_precisions_of_its_generation(gpu: Gpu) -> None:
    rates, capability = gpu.tensor_ops_per_s, gpu.compute_capability
    if capability < (7, 0):
        assert {getattr(rates, field.name) for field in fields(rates)} == {None}
    if rates.fp16 is not None:
        assert (rates.bf16 == rates.fp16) == (capability >= (8, 0))
        assert (rates.tf32 is not None) == (capability >= (8, 0))
        assert (rates.fp8 is not None) == (capability >= (8, 9))
        assert (rates.fp4 is not None) == (capability >= (10, 0))


def test_bandwidths_of_the_levels_follow_from_the_figures() -> None:
    a100 = find_gpu("a100-80gb")
    assert a100.register_bytes == a100.num_multiprocessors * 65536 * 4
    assert a100.shared_bytes_per_s == 108 * 128 * 1_410_000_000
    assert a100.l2_bytes_per_s == 5120 * 1_410_000_000
    assert a100.host_bytes_per_s == pytest.approx(31.5 * GB, rel=0.001)
    assert find_gpu("gb10").host_bytes_per_s is None
    assert find_gpu("h20").shared_bytes_per_s is None


@each_entry
def test_a_gpu_is_found_under_each_of_its_names(entry: Gpu | EstimateOnlyGpu) -> None:
    shared = [other for other in GPUS if other.name == entry.name]
    for name in (entry.slug, entry.slug.replace("-", " "), *entry.aliases):
        assert find_entry(name) is entry
    if len(shared) <= 1:
        assert find_entry(entry.name) is find_entry(entry.name.upper()) is entry
    else:
        with pytest.raises(SpecError, match="is the name of") as refusal:
            find_entry(entry.name)
        assert all(other.slug in str(refusal.value) for other in shared)


def test_no_two_gpus_share_a_slug_or_an_alias() -> None:
    slugs = [name for entry in (*GPUS, *OTHERS) for name in (entry.slug, *entry.aliases)]
    assert len(slugs) == len(set(slugs))
    assert not set(slugs) & {entry.name.lower() for entry in (*GPUS, *OTHERS)}


@pytest.mark.parametrize(
    ("group", "gpus", "others"),
    [
        ("Hopper", {"h100-80gb", "h200", "gh200"}, set()),
        ("8.7", {"jetson-agx-orin-64gb"}, set()),
        ("data-center", {"t4", "b200"}, {"mi300x"}),
        ("AMD", set(), {"mi300x", "rx-7900-xtx"}),
        ("apple", set(), {"apple-m4-max"}),
        ("nvidia", {"t4", "rtx-5090"}, set()),
    ],
)
def test_a_group_is_found_by_its_name(group: str, gpus: set[str], others: set[str]) -> None:
    found, found_others = find_group(group)
    assert {gpu.slug for gpu in found} >= gpus and bool(found) == bool(gpus)
    assert {o.slug for o in found_others} >= others and bool(found_others) == bool(others)


def test_no_group_has_the_name_of_a_gpu() -> None:
    for entry in (*GPUS, *OTHERS):
        assert all(find_group(name) == ((), ()) for name in names_of(entry))


def test_a_gpu_without_cuda_is_not_given_where_one_with_it_is_asked_for() -> None:
    assert isinstance(find_entry("mi300x"), EstimateOnlyGpu)
    with pytest.raises(SpecError, match="AMD Instinct MI300X is in the catalogue for estimates"):
        find_gpu("mi300x")


def test_gpus_without_cuda_are_of_two_makers_and_some_share_the_cpus_memory() -> None:
    assert {other.vendor for other in OTHERS} == {"AMD", "Apple"}
    for other in OTHERS:
        assert list(other.memory_sizes_gb) == sorted(set(other.memory_sizes_gb))
        assert 50 * GB < other.bandwidth_bytes_per_s <= 8000 * GB
        is_apple = other.vendor == "Apple"
        assert other.is_memory_unified == (is_apple or other.slug == "ryzen-ai-max-395")


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
        ("a100", "did you mean a100-40gb or a100-40gb-pcie or a100-80gb or a100-80gb-pcie?"),
        ("RTX 4o90", "rtx-4090"),
        ("rtx 4060 ti", "rtx-4060-ti-8gb or rtx-4060-ti-16gb"),
        ("mi300", "mi300x"),
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


def test_the_advice_for_an_unknown_gpu_names_options_where_they_are_alone() -> None:
    with pytest.raises(SpecError) as raised:
        find_gpu("h10")
    assert "--memory" not in str(raised.value)  # `ullage estimate` has no such option
    with pytest.raises(SpecError, match=r"did you mean .* give --memory 24GiB --capability 8\.9"):
        choose_device("h10")


def test_a_gpu_that_the_catalogue_does_not_have_is_refused() -> None:
    with pytest.raises(SpecError, match="the catalogue has no 'NVIDIA X1'"):
        find_by_device("NVIDIA X1", 0)


def test_of_gpus_of_one_name_the_memory_decides() -> None:
    gpu = find_gpu("a100-80gb")
    assert find_by_device(gpu.name, gpu.total_bytes).name == gpu.name


def test_rows_by_themselves_are_those_of_their_whole_files() -> None:
    folder = resources.files("ullage.facts.gpus")
    files = dict.fromkeys(file for file, _ in _row_texts().values())
    whole = [
        row for file in files for row in tomllib.loads((folder / file).read_text("utf-8"))["gpu"]
    ]
    assert [row["slug"] for row in whole] == [*_row_texts()]
    assert all({**row, "segment": None} == {**_row(row["slug"]), "segment": None} for row in whole)


def test_a_gpu_is_found_by_its_slug_from_its_own_row() -> None:
    expected = {gpu.slug: gpu for gpu in (*GPUS, *OTHERS)}
    _row.cache_clear()
    assert find_gpu("h100-80gb") == expected["h100-80gb"]
    assert _row.cache_info().currsize <= 1
    named = {slug for gpu in expected.values() for slug in gpu.aliases if gpu.slug != slug}
    assert not named & {*expected}, "the slug of one GPU is the alias of another"
