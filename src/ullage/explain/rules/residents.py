"""Rules about what stays on the GPU all along."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from ullage.explain.moments.course import Phase
from ullage.explain.rules.case import Case
from ullage.explain.rules.rule import Found, Kind, Rule, found_at
from ullage.explain.trial import Relief
from ullage.ground.units import format_bytes
from ullage.log.model import Category

_SAME_FRAC = 0.1
# Quantised weights, caches of keys and values and running statistics are buffers, too, and differ.
_TABLE = re.compile(
    r"mask|causal|tril|triu|^bias$|alibi|position|rope|rotary|^cos|^sin|cos_|sin_|freqs|^pe$|index",
    re.IGNORECASE,
)
_DATA_FRAC = 0.25
_WORKSPACE_FRAC = 0.15
_MIN_SAME = 3
_FEW = 4
_SECOND_FRAC = 0.1


def _find_same_buffers(case: Case) -> Iterator[Found]:
    if not case.is_known:
        return
    is_shared = np.isin(case.device.replay.blocks.address, _addresses_of_tables(case))
    numbers = np.flatnonzero(case.is_live & case.is_of(Category.BUFFER) & is_shared)
    requested = case.device.replay.blocks.requested_bytes[numbers]
    for size in np.unique(requested):
        same = numbers[requested == size]
        extra = case.size_bytes[same][1:].sum()
        if len(same) >= _MIN_SAME and case.is_worth(int(extra), _SAME_FRAC):
            alike = f"{len(same)} buffers of {format_bytes(int(size))} each are live"
            what = f"{alike}: {case.share(int(extra))} more than one"
            yield found_at(case, same, what, int(extra), Relief(same[1:]))


def _addresses_of_tables(case: Case) -> list[int]:
    """Where the buffers are that are named as what does not depend on the layer."""
    record = case.report.record
    if record is None:
        return []
    claims = record.claims
    return [
        address
        for address, category, name in zip(
            claims.address.tolist(), claims.category, claims.name, strict=True
        )
        if category is Category.BUFFER and _TABLE.search(name.rpartition(".")[2])
    ]


def _find_data(case: Case) -> Iterator[Found]:
    """Few large tensors that are there before the first pass and to the last step."""
    course, blocks = case.device.course, case.device.replay.blocks
    if not case.is_known or course.num_steps < 2:
        return
    first = course.begin[course.phase == Phase.FORWARD]
    if not len(first):
        return
    stays = (blocks.birth < first[0]) & (blocks.death >= course.step_ends[-1])
    stays &= case.is_of(Category.INPUT, Category.UNATTRIBUTED)
    recorded = case.device.recorded
    if recorded is not None and recorded.dead is not None:
        stays[recorded.dead.blocks] = False  # UL116 says more
    numbers = np.flatnonzero(stays)
    numbers = numbers[np.argsort(-case.size_bytes[numbers], kind="stable")][:_FEW]
    size = int(case.size_bytes[numbers].sum())
    if not case.is_worth(size, _DATA_FRAC):
        return
    what = f"data is on the GPU from before the first step to the last: {case.share(size)}"
    gain = size * (course.num_steps - 1) // course.num_steps
    relief = Relief(numbers, left_frac=1 / course.num_steps, is_whole=False)
    yield found_at(case, numbers, what, gain, relief)


def _find_second_device(case: Case) -> Iterator[Found]:
    """A device that this process uses for next to nothing, or does not work on, beside the one
    that it works on.
    """
    mine, course = case.device.peak_reserved_bytes, case.device.course
    others = [device for device in case.report.devices if device is not case.device]
    if not mine or not others:
        return
    main = max(others, key=lambda device: device.peak_reserved_bytes)
    works = case.born_in(Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER).any()
    is_idle = course.has_phases and not works
    if not is_idle and mine >= _SECOND_FRAC * main.peak_reserved_bytes:
        return
    blocks = np.flatnonzero(case.is_live)
    yield Found(
        what=f"{format_bytes(mine)} and a driver context are on device {case.device.index}, while "
        f"the program works on device {main.index}",
        evidence=case.list_sites(blocks) or ("nothing is allocated there any more",),
        gain_bytes=mine,
        blocks=blocks,
    )


def _find_workspaces(case: Case) -> Iterator[Found]:
    numbers = np.flatnonzero(case.is_live & case.is_of(Category.WORKSPACE))
    size = int(case.size_bytes[numbers].sum())
    if not case.is_known or not case.is_worth(size, _WORKSPACE_FRAC) or size < 128 << 20:
        return
    streams = len(np.unique(case.device.replay.blocks.stream[numbers]))
    what, gain = f"workspaces of libraries are {case.share(size)}", case.size_bytes[numbers].max()
    evidence = (f"{len(numbers)} workspaces on {streams} streams",)
    yield found_at(case, numbers, what, size - int(gain), evidence=evidence)


RULES = (
    Rule(
        code="UL132",
        title="the same buffer is there many times",
        kind=Kind.FAULT,
        meaning="Each layer registers its own mask, table of positions or the like, though all are "
        "equal.",
        evidence="Three buffers or more that are named as masks, positions or tables have the same "
        "size, and all but one are 10 % of the peak or more.",
        cost="nothing",
        change="register it once in the model and hand it to the layers (or make it where it is "
        "used, persistent=False)",
        find=_find_same_buffers,
    ),
    Rule(
        code="UL133",
        title="data stays on the GPU all along",
        kind=Kind.CHOICE,
        meaning="A whole data set, a replay buffer or a table that is used a part at a time has "
        "been moved to the GPU. A trace does not show how much of it a step reads: one batch that "
        "every step uses whole looks the same.",
        evidence="Tensors that are not part of the model are there before the first forward pass "
        "and until the last step, few of them 25 % of the peak or more.",
        cost="copying each batch, which pinned memory and non_blocking=True hide",
        change="where a step uses a part of it, keep it on the CPU (pinned) and move each batch",
        find=_find_data,
    ),
    Rule(
        code="UL134",
        title="a few tensors are on another GPU",
        kind=Kind.FAULT,
        meaning="A buffer that was made on 'cuda' (which is device 0), or a checkpoint that was "
        "loaded to where it was saved from: each rank then also takes a context on that GPU.",
        evidence="The process reserves less than a tenth on one device of what it reserves on "
        "another, or allocates nothing there in its passes.",
        cost="nothing",
        change="call torch.cuda.set_device(local_rank) before anything else, and load with "
        "map_location",
        find=_find_second_device,
    ),
    Rule(
        code="UL146",
        title="workspaces of libraries are large",
        kind=Kind.CHOICE,
        meaning="cuBLAS keeps a workspace for each stream it is called on, 32 MiB on an H100; "
        "cuDNN takes what its fastest algorithm wants.",
        evidence="Blocks that libraries were handed as scratch memory are 15 % of the peak or "
        "more, and at least 128 MiB.",
        cost="perhaps some speed",
        change="use fewer streams; set CUBLAS_WORKSPACE_CONFIG=:4096:2:16:8; "
        "torch.backends.cudnn.benchmark_limit for cuDNN",
        find=_find_workspaces,
    ),
)
