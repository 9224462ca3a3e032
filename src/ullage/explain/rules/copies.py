"""Rules about second copies of what is there already."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np

from ullage.explain.moments.course import Phase
from ullage.explain.moments.spikes import find_brief
from ullage.explain.owners.sites import ULLAGE_FRAME, has_python_file
from ullage.explain.rules.case import Case
from ullage.explain.rules.rule import Found, Kind, Rule, found_at
from ullage.ground.units import KIB
from ullage.log.blocks import BoolArray
from ullage.log.model import Category
from ullage.log.snapshot import Int64Array

_MATCHED_FRAC = 0.8
_MIN_TENSORS = 4
# Smaller tensors are too many and too alike to be told apart by their sizes.
_MIN_TENSOR_BYTES = 64 * KIB
_UPCAST_FRAC = 0.12
# What is cast is one of so many blocks before its copy.
_NEAR = 8
_ROOT = re.compile(r"(\w+(#\d+)?)(?:\..*)?")
_HALF = ("bfloat16", "float16")
_ORDINARY = (Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE, Category.BUFFER)


def _find_second_weights(case: Case) -> Iterator[Found]:
    if not case.is_known:
        return
    others = case.is_live & ~case.is_of(*_ORDINARY) & case.born_in(Phase.OUTSIDE)
    copies = _match_parameters(case, others, divisor=1)
    if copies is None or not case.is_worth(case.sum(copies)):
        return
    blocks = np.flatnonzero(copies)
    what = f"the weights are there twice: the second copy is {case.share(case.sum(copies))}"
    alike = f"{len(blocks)} tensors that are not parameters have the sizes of the parameters"
    relief = case.relief(copies)
    yield found_at(case, blocks, what, case.gain(copies), relief, evidence=(alike,))


def _find_cast_cache(case: Case) -> Iterator[Found]:
    record = case.report.record
    if not case.is_known or record is None or not any(mark.has_autocast for mark in record.marks):
        return
    course = case.device.course
    at_peak = int(course.region_at(np.array([case.device.peak_event]))[0])
    passes = np.cumsum(course.phase == Phase.FORWARD)
    others = (passes[case.region] == passes[at_peak]) & ~case.is_of(*_ORDINARY)
    others &= case.born_in(Phase.FORWARD) & ~find_brief(case.device.replay) & case.may_be(*_HALF)
    copies = _match_parameters(case, others, divisor=2, of=case.may_be("float32"))
    if copies is None or not case.is_worth(case.sum(copies)):
        return
    blocks = np.flatnonzero(copies)
    what = f"autocast holds the weights in half precision: {case.share(case.sum(copies))}"
    halves = f"{len(blocks)} tensors of the forward pass have half the sizes of parameters"
    yield found_at(case, blocks, what, case.sum(copies), evidence=(halves,))


def _find_converted(case: Case) -> Iterator[Found]:
    """Parameters that were freed before the first pass, with others in their place."""
    course, blocks = case.device.course, case.device.replay.blocks
    passes = course.begin[course.phase == Phase.FORWARD]
    first = int(passes[0]) if len(passes) else case.device.replay.num_events
    before = case.is_of(Category.PARAMETER) & (blocks.birth < first) & (blocks.birth >= 0)
    former, later = before & (blocks.death <= first), before & (blocks.death > first)
    if not case.is_known or former.sum() < _MIN_TENSORS or not later.any():
        return
    gain = case.gain(former)
    if not case.is_worth(gain):
        return
    what = f"the weights are converted on the GPU: as they were they are {case.share(gain)}"
    freed = f"{int(former.sum())} parameters are freed before the first forward pass"
    numbers, relief = np.flatnonzero(former), case.relief(former)
    yield found_at(case, numbers, what, gain, relief, evidence=(freed,))


def _find_former_model(case: Case) -> Iterator[Found]:
    """A root of the class and the sizes of an earlier one, which is not called any more."""
    modules, blocks = case.device.owners.modules, case.device.replay.blocks
    if not case.is_known or modules is None:
        return
    roots = [_ROOT.fullmatch(name) for name in modules.names]
    persistent = np.flatnonzero(case.is_live & case.is_of(*_ORDINARY))
    persistent = persistent[modules.index[persistent] >= 0]
    for later in sorted({root[1] for root in roots if root is not None and root[2]}):
        kind = later.partition("#")[0]
        own = np.array([root is not None and root[1] == later for root in roots])
        earlier = np.array([
            root is not None and root[1] == kind and not root[2] for root in roots
        ])  # fmt: skip
        of_later, of_earlier = (
            persistent[mask[modules.index[persistent]]] for mask in (own, earlier)
        )
        if not len(of_later) or not len(of_earlier) or not _are_alike(case, of_later, of_earlier):
            continue
        begin = int(blocks.birth[of_later].min())
        is_used = earlier[modules.index] & (modules.index >= 0) & (blocks.birth > begin)
        mask = np.zeros(len(blocks.birth), dtype=np.bool_)
        mask[of_earlier] = True
        death = np.maximum(blocks.birth, begin)
        # Where memory ran out, what it had then counts: the peak may be the first model's own.
        is_short = case.device.shortage is not None
        gain = case.sum(mask) if is_short else case.gain(mask, np.minimum(death, blocks.death))
        if is_used.any() or not case.is_worth(gain):
            continue
        yield Found(
            what=f"{kind} and {later} are both there: the first is {case.share(gain)}",
            evidence=(
                f"no module of {kind} is called after {later} comes",
                *case.list_sites(of_earlier),
            ),
            gain_bytes=gain,
            blocks=of_earlier,
            relief=case.relief(mask, death),
        )


def _are_alike(case: Case, later: Int64Array, earlier: Int64Array) -> bool:
    """True if the parameters of the later are of the earlier's sizes: all, or when memory ran out
    those that were there.
    """
    sizes = case.device.replay.blocks.requested_bytes
    is_parameter = case.is_of(Category.PARAMETER)
    counts = [Counter(sizes[those[is_parameter[those]]].tolist()) for those in (later, earlier)]
    is_short = case.device.shortage is not None
    return counts[0] == counts[1] or (is_short and bool(counts[0]) and counts[0] <= counts[1])


def _match_parameters(
    case: Case, candidates: BoolArray, divisor: int, of: BoolArray | None = None
) -> BoolArray | None:
    """One of the candidates for each parameter of its size over `divisor`, of all or of those that
    are meant; None where not most of them have one.
    """
    requested = case.device.replay.blocks.requested_bytes
    is_large = requested >= _MIN_TENSOR_BYTES
    is_parameter = case.is_of(Category.PARAMETER) & case.is_live & is_large
    parameters = requested[is_parameter if of is None else is_parameter & of] // divisor
    counter = Counter(parameters.tolist())
    is_copy = np.zeros(len(requested), dtype=np.bool_)
    for block in np.flatnonzero(candidates).tolist():
        size = int(requested[block])
        if counter.get(size):
            counter[size] -= 1
            is_copy[block] = True
    total = int(parameters.sum())
    missing = sum(size * count for size, count in counter.items())
    if is_copy.sum() < _MIN_TENSORS or total - missing < _MATCHED_FRAC * total:
        return None
    return is_copy


def _find_upcasts(case: Case) -> Iterator[Found]:
    """A function takes N bytes, makes 2 N, works on 2 N, and gives back N: what it made in between
    is the same in twice the precision.
    """
    if not case.is_known:
        return
    blocks = case.device.replay.blocks
    is_saved = case.is_live & case.is_of(Category.ACTIVATION) & case.born_in(Phase.FORWARD)
    is_saved &= case.may_be("float32")
    is_half = case.may_be(*_HALF)
    wide = np.zeros(len(blocks), dtype=np.bool_)
    for births in _births_by_function(case):
        sizes = blocks.requested_bytes[births]
        for first in range(len(births) - 2):
            size = int(sizes[first])
            if size < _MIN_TENSOR_BYTES or not is_saved[births[first]]:
                continue
            if not _has_half(case, int(births[first]), size, is_half):
                continue
            after = sizes[first + 1 : first + 8]
            back = np.flatnonzero(after * 2 == size)
            again = np.flatnonzero(after == size)
            if len(back) and len(again) and again[0] < back[0]:
                wide[births[first]] = True
                inner = births[first + 1 : first + 1 + back[0]]
                wide[inner[(sizes[first + 1 : first + 1 + back[0]] == size) & is_saved[inner]]] = 1
    size = case.sum(wide)
    if not case.is_worth(size, _UPCAST_FRAC):
        return
    numbers = np.flatnonzero(wide)
    what = f"half-precision activations are kept in fp32: {case.share(size)}"
    twice = (
        f"{len(numbers)} saved tensors are twice as large as what comes out of the functions they "
        "are made in"
    )
    relief = case.relief(wide, left_frac=0.5, is_whole=False)
    yield found_at(case, numbers, what, size // 2, relief, evidence=(twice,))


def _has_half(case: Case, block: int, size: int, is_half: BoolArray) -> bool:
    """True if what is half as large was there when a block came: what it is a wider copy of. A
    stage that halves its channels begins with a tensor of its own size.
    """
    blocks = case.device.replay.blocks
    before = slice(max(block - _NEAR, 0), block)
    is_live = blocks.death[before] > blocks.birth[block]
    is_its = is_half[before] & (blocks.requested_bytes[before] * 2 == size)
    return bool((is_live & is_its).any())


def _births_by_function(case: Case) -> Iterator[Int64Array]:
    """The blocks that each of the user's own lines' functions bore directly, in order; those of
    modules of torch, such as a Linear within, are left out.
    """
    stacks, blocks = case.report.snapshot.stacks, case.device.replay.blocks
    frames = stacks.frames
    keys: dict[tuple[str, str], int] = {}
    of_stack = np.full(len(stacks), -1, dtype=np.int64)
    for stack in np.unique(blocks.stack).tolist():
        for number in stacks.frame[stacks.start[stack] : stacks.start[stack + 1]].tolist():
            file, name = frames.file[number], frames.function[number]
            if "torch::autograd::" in name:
                break  # backward is of no function
            if not has_python_file(file) or ULLAGE_FRAME.search(file):
                continue
            if "torch/" not in file or name in {"softmax", "log_softmax"}:
                if "torch/" in file:
                    continue
                of_stack[stack] = keys.setdefault((file, name), len(keys))
            break
    key = of_stack[blocks.stack]
    for number in range(len(keys)):
        yield np.flatnonzero((key == number) & (blocks.birth >= 0))


RULES = (
    Rule(
        code="UL105",
        title="the weights are on the GPU twice",
        kind=Kind.FAULT,
        meaning="A checkpoint that was loaded to the GPU and is still referred to, a copy that was "
        "meant for the CPU, an average of the weights, a frozen twin of the model.",
        evidence="Tensors made before or between steps, none of them parameters, gradients or "
        "optimizer states, have the sizes of at least 80 % of the parameters' bytes.",
        cost="nothing for a checkpoint; an average or a twin that is needed can live on the CPU, "
        "for the time it takes to copy it.",
        change='load checkpoints with map_location="cpu" (or mmap=True), and del them afterwards',
        find=_find_second_weights,
    ),
    Rule(
        code="UL106",
        title="autocast keeps half-precision copies of fp32 weights",
        kind=Kind.CHOICE,
        meaning="Under torch.autocast each weight is cast once and the copy is kept until the "
        "context ends, and by the graph until backward.",
        evidence="Tensors of the forward pass of the peak's step have half the sizes of at least "
        "80 % of the parameters' bytes.",
        cost="weights in bf16 alone need an optimizer that keeps what rounding loses (fp32 master "
        "weights, stochastic rounding, Kahan summation).",
        change="keep the weights in bf16 (model.to(torch.bfloat16)) instead of autocast",
        find=_find_cast_cache,
    ),
    Rule(
        code="UL107",
        title="the weights are converted on the GPU",
        kind=Kind.FAULT,
        meaning="model.cuda().half(), .to(device) before .to(dtype): the GPU holds the weights as "
        "they were, and then those that are used.",
        evidence="Parameters are freed before the first forward pass, and others take their place.",
        cost="nothing, or the time to convert on the CPU",
        change="convert before the move: model.half().cuda(), or load in the type that is used "
        "(dtype= of from_pretrained, torch.set_default_dtype)",
        find=_find_converted,
    ),
    Rule(
        code="UL108",
        title="a model is held beside the next one",
        kind=Kind.FAULT,
        meaning="A second model of the same class and sizes is made while the first, its gradients "
        "and its optimizer's states are held by a name: each fold, trial or reload adds one.",
        evidence="Of two outermost modules of one class the parameters have equal sizes, and the "
        "first is not called once the second is there.",
        cost="nothing",
        change="before the next is made: del the model and its optimizer, and what holds its "
        "outputs, then gc.collect()",
        find=_find_former_model,
    ),
    Rule(
        code="UL122",
        title="half-precision activations are saved in fp32",
        kind=Kind.CHOICE,
        meaning="x.float() in a norm, a softmax or a loss makes a copy of twice the size, and "
        "backward keeps it.",
        evidence="In one function, after a tensor of half its size, a tensor is followed by "
        "others of its size and then by one of half of it, and the large ones are live at the "
        "peak; 12 % of it or more.",
        cost="a fused operation works in fp32 inside and saves what is half as large: nothing is "
        "lost. Working in bf16 throughout loses precision.",
        change="use the fused operation (F.rms_norm, F.layer_norm, F.softmax(x, dtype=...), "
        "F.scaled_dot_product_attention) or torch.compile",
        find=_find_upcasts,
    ),
)
