"""PYTORCH_ALLOC_CONF does what it does on a GPU: each option shows in what torch counts.

The sizes expected here are worked out from what an option is documented to do, not read off a run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]
Find = Callable[[str, str], Any]

MIB = 2**20
NO_ROOM = "CUDA out of memory. Tried to allocate "
PREEMPTED = "would exceed per_process_memory_fraction limit"


@dataclass(frozen=True, slots=True)
class Option:
    """Settings under which a case of settings_in_turn.py counts other MiB than without them."""

    case: str
    settings: str
    without: Any
    with_it: Any


# Blocks are multiples of 512 bytes; up to 10 MiB they come out of segments of 20 MiB, larger ones
# get a segment of their own, a multiple of 2 MiB. Pinned blocks are powers of two.
BLOCK_5 = 5.00146484375
OPTIONS = (
    # 5 and a bit and 33 and a bit: quarters of 4 and of 32 are 1 and 8.
    Option("rounding", "roundup_power2_divisions:4", [BLOCK_5, 54], [6, 60]),
    # Halves below 8 MiB, nothing above.
    Option("rounding", "roundup_power2_divisions:[8:2,64:1,>:1]", [BLOCK_5, 54], [6, 54]),
    # A cached block of 256 is not cut for 40; nor given whole for 226, 30 less than it has.
    Option("splitting", "max_split_size_mb:100", [256, 256], [296, 482]),
    Option(
        "splitting", "max_split_size_mb:100,max_non_split_rounding_mb:40", [256, 256], [296, 256]
    ),
    # One segment of 64 holds both 5 and 40.5.
    Option("packing", "large_segment_size_mb:64", [20, 42], [64, 0]),
    # One segment that grows to the largest block, in pages of 20 MiB.
    Option("growing", "expandable_segments:True", [4, 0, 400], [1, 1, 160]),
    Option("packing", "expandable_segments:True", [20, 42], [20, 40]),
    # A power of two from 3 and a bit, and from 40.
    Option(
        "pinned",
        "pinned_max_round_threshold_mb:2",
        [4, 68, 68.5],
        [3 + 1048 / MIB, 43 + 1048 / MIB, 43.5 + 1048 / MIB],
    ),
    # What is larger goes back when it is let go, and is not rounded.
    Option("pinned", "pinned_max_cached_size_mb:8", [4, 68, 68.5], [4, 44, 4.5]),
)
# Collected when reserved passes half of the 2 GiB that the process may take; never at 99 %.
COLLECTING = ("garbage_collection_threshold:0.5", "garbage_collection_threshold:0.99")
HALF = "per_process_memory_fraction:0.5"
THROW = "throw_on_cudamalloc_oom:True"
QUARTER = "expandable_segments:True,expandable_segments_reserve:0.25"
BY_CLASS = "expandable_segments:True,expandable_segments_reserve_by_class:[x:0.25]"
# No effect on how much memory is taken.
NEUTRAL = (
    ("growing", "release_lock_on_cudamalloc:True"),
    ("growing", "graph_capture_record_stream_reuse:True"),
    ("growing", "expandable_segments:False"),
    ("growing", "backend:native"),
    ("pinned", "pinned_use_background_threads:True"),
    ("pinned", "pinned_free_catch_all:True"),
    ("pinned", "pinned_use_cuda_host_register:True,pinned_num_register_threads:4"),
    ("pinned", "pinned_reserve_segment_size_mb:64"),
)
# In torch's own words, the newest first; older versions have other ones.
UNKNOWN = (
    "Unrecognized key 'no_such_option'", "Unrecognized CachingAllocator option: no_such_option",
)  # fmt: skip
WRONG = {
    "no_such_option:1": UNKNOWN,
    "max_split_size_mb:1": ("max_split_size_mb too small", "max_split_size too small"),
    "garbage_collection_threshold:1.5": (
        "garbage_collect_threshold is invalid", "garbage_collect_threshold too big",
    ),
    "roundup_power2_divisions:3": ("has to be power of 2",),
}  # fmt: skip
REST = (
    *(("collecting", settings) for settings in ("", *COLLECTING)),
    *(("limit", settings) for settings in ("", HALF, THROW, f"{HALF},{THROW}")),
    *(("largest", settings) for settings in ("", QUARTER, BY_CLASS)),
    *NEUTRAL,
    *(("growing", settings) for settings in WRONG),
)
CASES = tuple(
    dict.fromkeys(
        (
            *((option.case, "") for option in OPTIONS),
            *((option.case, option.settings) for option in OPTIONS),
            *REST,
        )
    )
)


def skip_what_is_newer(torch_version: str, what: str, text: str) -> None:
    """Skips where an older torch knows no such option, or has no such function."""
    if not torch_version.startswith("2.15."):
        for sign in ("Unrecognized ", "has no attribute"):
            if sign in text:
                pytest.skip(f"torch {torch_version} has no {what or text}")


@pytest.fixture
def find(run_program: RunProgram, torch_version: str) -> Find:
    """What a case counts under settings; skips an option that came after this torch."""

    def find_case(case: str, settings: str) -> Any:
        words = [word for pair in CASES for word in pair]
        outcome = run_program("settings_in_turn.py", *words)
        assert outcome.exit_code == 1, outcome.stderr  # some fill the GPU until a request is lost
        found = dict(zip(CASES, outcome.printed, strict=True))[case, settings]
        skip_what_is_newer(torch_version, settings, "" if settings in WRONG else str(found))
        return found

    return find_case


@pytest.mark.slow(only=("rounding-roundup_power2_divisions:4",))
@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: f"{option.case}-{option.settings}")
def test_an_option_changes_what_it_is_for(find: Find, option: Option) -> None:
    assert find(option.case, "") == option.without
    assert find(option.case, option.settings) == pytest.approx(option.with_it, abs=512 / MIB)


def test_a_threshold_of_collection_gives_back_what_was_not_used_for_long(find: Find) -> None:
    plain, none_freed = find("collecting", "")
    assert none_freed == 0
    reserved, num_freed = find("collecting", COLLECTING[0])
    # Every one of the blocks that are cached has more than 200 MiB.
    assert num_freed > 0 and reserved <= plain - num_freed * 200
    assert find("collecting", COLLECTING[1]) == [plain, 0]


def test_a_fraction_of_the_gpu_is_all_that_a_process_gets(find: Find) -> None:
    num_blocks, message = find("limit", "")
    assert num_blocks == 15 and message.startswith(NO_ROOM)
    num_blocks, message = find("limit", HALF)
    assert num_blocks == 7 and message.startswith(NO_ROOM)
    assert " 39.59 GiB allowed;" in message, "half of 79.19 GiB"


def test_an_early_refusal_says_that_it_is_one(find: Find) -> None:
    num_blocks, message = find("limit", THROW)
    assert num_blocks == 15 and PREEMPTED in message
    assert find("limit", f"{HALF},{THROW}")[0] == 7


def test_a_reserve_of_addresses_bounds_a_block(find: Find) -> None:
    assert find("largest", "") == "", "half of the GPU is there"
    assert "exceeds the expandable-segment reserve of 19.80 GiB" in find("largest", QUARTER)
    assert find("largest", BY_CLASS) == "", "no stream is of that class"


@pytest.mark.parametrize(("case", "settings"), NEUTRAL)
def test_an_option_that_is_not_about_size_changes_none(
    find: Find, case: str, settings: str
) -> None:
    assert find(case, settings) == find(case, "")


@pytest.mark.parametrize("settings", WRONG)
def test_a_wrong_option_meets_torchs_own_error(find: Find, settings: str) -> None:
    found = find("growing", settings)
    assert any(words in found for words in WRONG[settings]), found


REGISTERED = "pinned_use_cuda_host_register:True,pinned_num_register_threads:4"
# Each way in, with other settings, and what they do to alloc_settings.py.
WAYS = {
    "option": (
        (
            "--alloc-conf",
            "expandable_segments:True",
        ),
        (),
    ),
    "old variable": ((), (("PYTORCH_CUDA_ALLOC_CONF", "pinned_reserve_segment_size_mb:64"),)),
    "old variable, rounding": ((), (("PYTORCH_CUDA_ALLOC_CONF", "roundup_power2_divisions:4"),)),
    "new variable": ((), (("PYTORCH_ALLOC_CONF", f"{REGISTERED},roundup_power2_divisions:4"),)),
    "none": ((), ()),
}


RunWay = Callable[[str], Any]


@pytest.fixture
def run_way(run_program: RunProgram, torch_version: str) -> RunWay:
    """What alloc_settings.py does with settings that come in by a way."""

    def run(way: str) -> Any:
        options, env = WAYS[way]
        outcome = run_program("alloc_settings.py", options=options, env=env)
        if outcome.exit_code:
            skip_what_is_newer(torch_version, str(env), outcome.stderr)
        assert outcome.exit_code == 0, outcome.stderr
        return outcome

    return run


@pytest.mark.parametrize("way", WAYS)
def test_settings_show_in_the_document_as_in_torchs_own_account(run_way: RunWay, way: str) -> None:
    outcome = run_way(way)
    said = outcome.printed
    for kind in ("requested", "allocated", "reserved"):
        assert outcome.device[f"peak_{kind}_bytes"] == said[f"{kind}_peak"]
    assert outcome.device["num_segments"] == said["segments_peak"]


def test_the_option_reaches_the_program(run_way: RunWay) -> None:
    expandable, plain = (run_way(way) for way in ("option", "none"))
    assert {s["is_expandable"] for s in expandable.snapshot["segments"]} == {True}
    assert {s["is_expandable"] for s in plain.snapshot["segments"]} == {False}
    assert expandable.device["num_segments"] < plain.device["num_segments"]
    assert expandable.device["peak_reserved_bytes"] < plain.device["peak_reserved_bytes"]
    actions = {entry["action"] for trace in expandable.snapshot["device_traces"] for entry in trace}
    assert "segment_map" in actions and "segment_alloc" not in actions
    assert "Warning" not in expandable.stderr, "a GPU of capability 9.0 warns of nothing"


def test_the_old_variable_reaches_the_program(run_way: RunWay) -> None:
    reserved, plain = (run_way(way) for way in ("old variable", "none"))
    assert plain.document["pinned_peak_bytes"] == 6 * MIB, "2 and 4, powers of two"
    assert reserved.document["pinned_peak_bytes"] == 64 * MIB, "one segment for both"
    assert reserved.printed == plain.printed


def test_rounding_by_the_old_variable_reaches_the_program(run_way: RunWay) -> None:
    rounded, plain = (run_way(way) for way in ("old variable, rounding", "none"))
    assert rounded.printed["allocated_peak"] > plain.printed["allocated_peak"]
    assert rounded.printed["requested_peak"] == plain.printed["requested_peak"]


def test_the_new_variable_reaches_the_program(run_way: RunWay, torch_version: str) -> None:
    if torch_version.startswith(("2.6.", "2.7.", "2.8.", "2.9.")):
        pytest.skip(f"torch {torch_version} reads PYTORCH_CUDA_ALLOC_CONF alone")
    rounded, plain = (run_way(way) for way in ("new variable", "none"))
    assert rounded.printed["allocated_peak"] > plain.printed["allocated_peak"]
    assert rounded.printed["requested_peak"] == plain.printed["requested_peak"]
    assert rounded.document["pinned_peak_bytes"] == plain.document["pinned_peak_bytes"]


def test_an_unknown_option_ends_the_program_with_torchs_own_error(run_program: RunProgram) -> None:
    outcome = run_program(
        "alloc_settings.py",
        options=(
            "--alloc-conf",
            "no_such_option:1",
        ),
    )
    assert outcome.exit_code == 3
    assert outcome.document["verdict"] == "failed"
    assert any(words in outcome.stderr for words in UNKNOWN)


def test_the_drivers_own_allocator_runs_and_is_assumed(run_program: RunProgram) -> None:
    outcome = run_program(
        "async_backend.py",
        options=(
            "--alloc-conf",
            "backend:cudaMallocAsync",
        ),
    )
    assert outcome.exit_code == 0, outcome.stderr
    said = outcome.printed
    assert said["backend"] == "cudaMallocAsync"
    # The same blocks as with torch's own allocator, rounded in another way.
    native = run_program("async_backend.py").printed["peak_allocated_bytes"]
    assert said["peak_allocated_bytes"] == pytest.approx(native, rel=0.02)
    basis = outcome.document["basis"]["allocator"]
    assert basis["kind"] == "assumed"
    # The driver's pool is what PyTorch reserves, and nobody else's.
    assert outcome.device["ledger"]["non_torch_bytes"] < 4 * MIB
    assert any("cudaMallocAsync" in made["what"] for made in basis["assumptions"])
    for kind in ("allocated", "reserved"):
        assert outcome.device[f"peak_{kind}_bytes"] == said[f"peak_{kind}_bytes"]


@pytest.mark.parametrize(
    ("words", "verdict"), [((), "fits"), (("--more",), "out_of_memory")], ids=["fits", "does not"]
)
def test_tensors_without_the_cache_are_memory_of_the_program(
    run_program: RunProgram, words: tuple[str, ...], verdict: str
) -> None:
    uncached = (("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"),)
    document = run_program("uncached.py", *words, gpu="a100-40gb", env=uncached).document
    (device,) = document["devices"]
    assert document["verdict"] == verdict
    assert device["peak_used_bytes"] - device["context_high_bytes"] == 32 << 30
    assert device["headroom_bytes"] == device["total_bytes"] - device["peak_used_bytes"]
    assert any("PYTORCH_NO_CUDA_MEMORY_CACHING" in text for text in document["warnings"])
