"""Rules about what forward and backward need at the peak."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator

import numpy as np

from ullage.explain.moments.course import Phase
from ullage.explain.moments.spikes import find_brief
from ullage.explain.owners.modules import ModuleOwners
from ullage.explain.rules.case import Case
from ullage.explain.rules.rule import Found, Kind, Rule, found_at
from ullage.ground.units import MIB, format_bytes
from ullage.log.blocks import BoolArray
from ullage.log.model import Category
from ullage.log.snapshot import Int64Array

_LOSS = re.compile(r"cross_entropy|^nll_loss|^log_softmax$", re.IGNORECASE)
_CHECKPOINT = re.compile(r"^checkpoint$|^_checkpoint_without_reentrant|CheckpointFunction")
_NUMBERED, _DIGITS = re.compile(r"[^.]*\d(?=\.|$)"), re.compile(r"\d+")
_LOGITS_FRAC = 0.25
_LOGIT_FRAC = 0.06
_CHUNKS = 8
_NEAR = 8
"""A loss reads one of this number of blocks before its own."""
_SPIKE_FRAC = 0.2
_MIN_SPIKE_BYTES = 64 * MIB
_SAVED_FRAC = 0.5
_TIMES_LARGER = 8
_MIN_LAYERS = 8
_OF_A_PASS = (Category.ACTIVATION, Category.TEMPORARY, Category.UNATTRIBUTED)


def _find_logits(case: Case) -> Iterator[Found]:
    """The tensors of the loss, the logits that it reads, and their gradients, at the peak."""
    blocks = case.device.replay.blocks
    in_loss = case.calls(_LOSS) & (blocks.birth >= 0)
    if not in_loss.any():
        return
    size = int(blocks.requested_bytes[in_loss].max())
    same = _of_loss(case, in_loss, size)
    total = case.sum(same & case.is_live)
    if size < _LOGIT_FRAC * case.peak_bytes or not case.is_worth(total, _LOGITS_FRAC):
        return
    numbers = np.flatnonzero(same & case.is_live)
    what = f"logits and what the loss makes of them are {case.share(total)}"
    alike = f"{len(numbers)} tensors of {format_bytes(size)}, or half or twice that, are live"
    gain = case.gain(same) * (_CHUNKS - 1) // _CHUNKS
    relief = case.relief(same, left_frac=1 / _CHUNKS, is_whole=False)
    is_guess = not case.is_known
    yield found_at(case, numbers, what, gain, relief, evidence=(alike,), is_guess=is_guess)


def _of_loss(case: Case, in_loss: BoolArray, size: int) -> BoolArray:
    """A split of the blocks of the size of logits, or half or twice that: the loss's own, what it
    reads, and what its backward makes.
    """
    blocks = case.device.replay.blocks
    same = np.isin(blocks.requested_bytes, [size // 2, size, 2 * size]) & case.is_of(*_OF_A_PASS)
    # What it reads comes right before it, by lines that run once in a pass: those of layers repeat.
    is_read = np.zeros(len(same), dtype=np.bool_)
    for first in np.flatnonzero(in_loss & ~np.append(False, in_loss[:-1])).tolist():
        is_read[max(first - _NEAR, 0) : first] = True
    if not case.is_known:
        guess: BoolArray = same & (in_loss | is_read | case.calls_backward())
        return guess
    calls = case.region[same] * len(case.report.sites.call) + case.call[same]
    _, place, counts = np.unique(calls, return_inverse=True, return_counts=True)
    is_read[same] &= counts[place] == 1
    # Its backward is over when the first parameter has its gradient.
    num_gradients = np.append(0, np.cumsum(case.is_of(Category.GRADIENT)))
    at_begin = num_gradients[np.searchsorted(case.region, case.region)]
    is_backward = case.born_in(Phase.BACKWARD) & (num_gradients[:-1] == at_begin)
    mask: BoolArray = same & (in_loss | is_read | is_backward)
    return mask


def _find_spike(case: Case) -> Iterator[Found]:
    blocks = case.device.replay.blocks
    # Gradients of activations come and go in every backward.
    brief = find_brief(case.device.replay) & ~case.is_of(Category.WORKSPACE)
    brief &= ~case.born_in(Phase.BACKWARD) & ~case.is_of(Category.GRADIENT)
    brief &= ~case.calls_backward()
    # Without gradients all is brief, and a layer's inner width is four times what goes in: what
    # stands out is much larger than the next smaller tensors of the pass.
    largest = int(case.size_bytes[brief & case.is_live].max(initial=0))
    others = case.is_live & (4 * case.size_bytes < 3 * largest)
    others &= case.is_of(*_OF_A_PASS, Category.INPUT)
    usual = int(case.size_bytes[others].max(initial=0))
    brief &= case.size_bytes >= _TIMES_LARGER * usual
    gain = case.gain(brief)
    if gain < _MIN_SPIKE_BYTES or not case.is_worth(gain, _SPIKE_FRAC):
        return
    numbers = np.flatnonzero(brief & case.is_live)
    numbers = numbers[np.argsort(-blocks.size_bytes[numbers], kind="stable")]
    what = f"tensors that live for a moment make {case.share(gain)}"
    relief = case.relief(brief, is_whole=False)
    yield found_at(case, numbers, what, gain, relief, is_guess=not case.is_known)


def _find_saved(case: Case) -> Iterator[Found]:
    """Many layers' activations are held for backward."""
    numbers = _saved_blocks(case)
    layers, is_of_layer = _find_layers(case, numbers)
    if layers < _MIN_LAYERS:
        return
    size = int(case.size_bytes[numbers[is_of_layer[numbers]]].sum())
    every = _is_saved(case) & is_of_layer
    share = case.share(int(case.size_bytes[numbers].sum()))
    what = f"activations kept for backward are {share}, from about {layers} layers"
    gain = max(min(size * (layers - 1) // layers, case.gain(every)), 0)
    relief = case.relief(every, left_frac=1 / layers, is_whole=False)
    yield found_at(case, numbers, what, gain, relief, is_guess=not case.is_known)


def _find_batch(case: Case) -> Iterator[Found]:
    """Activations of few layers, or of lines that are all different, are most of the peak."""
    numbers = _saved_blocks(case)
    if not case.is_known and not case.calls_backward().any():
        return
    if not len(numbers):
        return
    if _find_layers(case, numbers)[0] >= _MIN_LAYERS:
        return  # UL125 says more
    size = int(case.size_bytes[numbers].sum())
    every = _is_saved(case)  # of the other steps, too
    what = f"activations kept for backward are {case.share(size)}"
    gain = max(min(case.gain(every), size // 2), 0)
    relief = case.relief(every, left_frac=0.5, is_whole=False)
    yield found_at(case, numbers, what, gain, relief, is_guess=not case.is_known)


def _is_saved(case: Case) -> BoolArray:
    """Which blocks are activations of a pass with gradients; where that is not known, of any."""
    return case.is_of(Category.ACTIVATION) & (case.grad | ~np.bool_(case.is_known))


def _saved_blocks(case: Case) -> Int64Array:
    """The activations kept for backward at the peak; none where they are less than half of it, or
    where checkpointing keeps them already.
    """
    saved = case.is_live & _is_saved(case)
    size = case.sum(saved)
    is_done = 2 * case.sum(case.calls(_CHECKPOINT) & saved) > size
    if is_done or not case.is_worth(size, _SAVED_FRAC):
        return np.empty(0, dtype=np.int64)
    return np.flatnonzero(saved)


def _find_layers(case: Case, numbers: Int64Array) -> tuple[int, BoolArray]:
    """How many layers made the blocks, and which of all blocks are of these layers.

    Where modules have no numbers, it is how often the lines ran that hold most: the median of the
    bytes.
    """
    modules, sizes = case.device.owners.modules, case.size_bytes[numbers]
    if not len(numbers):
        return 0, np.zeros(len(case.call), dtype=np.bool_)
    if modules is not None and (layers := _numbered_modules(modules, numbers, sizes)) is not None:
        return layers
    # What runs once, as the loss does, is of no layer.
    calls, place, counts = np.unique(case.call[numbers], return_inverse=True, return_counts=True)
    order = np.argsort(counts[place])
    half = np.searchsorted(np.cumsum(sizes[order]), sizes.sum() / 2)
    return int(counts[place][order][half]), np.isin(case.call, calls[counts >= _MIN_LAYERS])


def _numbered_modules(
    modules: ModuleOwners, numbers: Int64Array, sizes: Int64Array
) -> tuple[int, BoolArray] | None:
    """The modules of one kind, with modules of their own, that hold half of the bytes or more, at
    the first number of their paths of which there are eight: "layers.3" of "layers.3.experts.7.up".
    """
    bytes_of = np.zeros(len(modules.names) + 1, dtype=np.int64)  # the last: outside of modules
    np.add.at(bytes_of, modules.index[numbers], sizes)
    parents = {name[:at] for name in modules.names for at, sign in enumerate(name) if sign == "."}
    # The module that has a path's first number, or a later one; empty if there is none.
    ends = [[match.end() for match in _NUMBERED.finditer(name)] for name in modules.names]
    best = None
    for depth in itertools.count():
        paths = (
            name[: of_name[depth]] if depth < len(of_name) else ""
            for name, of_name in zip(modules.names, ends, strict=True)
        )
        layers = [path if path in parents else "" for path in paths]
        kinds = [".".join(_DIGITS.sub("*", layer).split(".")[-2:]) for layer in layers]
        totals = Counter[str]()
        for kind, size in zip(kinds, bytes_of.tolist(), strict=False):
            totals[kind] += size if kind else 0
        ((largest, total),) = totals.most_common(1) or [("", 0)]
        if not total or 2 * total < sizes.sum():
            return best
        is_of_kind = np.array([*(kind == largest for kind in kinds), False])
        rows = np.flatnonzero(is_of_kind & (bytes_of > 0)).tolist()
        best = len({layers[number] for number in rows}), is_of_kind[modules.index]
        if best[0] >= _MIN_LAYERS:
            return best
    return best


def _find_first_step(case: Case) -> Iterator[Found]:
    course, levels = case.device.course, case.device.levels.allocated_bytes
    if course.num_steps < 3 or case.is_given_up:
        return
    ends = course.step_ends
    first = int(levels[: ends[0] + 1].max())
    later = int(levels[ends[0] + 1 : ends[-1] + 1].max(initial=0))
    if first < case.peak_bytes or not case.is_worth(first - later, _SPIKE_FRAC):
        return
    numbers = np.flatnonzero(case.is_live & (case.device.replay.blocks.death <= ends[1]))
    begins = course.begin[course.phase == Phase.FORWARD]
    is_set_up = len(begins) > 0 and case.device.peak_event < begins[0]
    where = "the set-up" if is_set_up else "the first step"
    what = f"{where} needs {format_bytes(first)}, all later steps at most {format_bytes(later)}"
    yield found_at(case, numbers, what, first - later)


RULES = (
    Rule(
        code="UL121",
        title="logits dominate the peak",
        kind=Kind.CHOICE,
        meaning="A large vocabulary times all tokens: the logits, their copy in fp32, the "
        "log-softmax and its gradient are each as large.",
        evidence="Tensors made in a loss function, those that it reads, and those that backward "
        "makes before the first gradient of a parameter, of the same size, half or twice it, are "
        "25 % of the peak or more.",
        cost="some time, unless the loss is fused",
        change="compute the loss in chunks of tokens, under checkpointing (torchtune's "
        "CEWithChunkedOutputLoss, Liger's FusedLinearCrossEntropy)",
        find=_find_logits,
    ),
    Rule(
        code="UL125",
        title="activations of many layers are kept for backward",
        kind=Kind.CHOICE,
        meaning="Each layer keeps what its backward needs. Activation checkpointing keeps each "
        "layer's input alone, and makes the rest anew.",
        evidence="Activations are half of the peak or more, and eight layers or more made them: "
        "modules that differ by a number, else runs of the same lines.",
        cost="about a third more time for each step",
        change="torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False) for each layer "
        "(transformers: model.gradient_checkpointing_enable())",
        find=_find_saved,
        is_general=True,
    ),
    Rule(
        code="UL126",
        title="activations dominate the peak",
        kind=Kind.CHOICE,
        meaning="What forward keeps for backward grows with the batch, and with the length or the "
        "image, and is most of the peak.",
        evidence="Activations are half of the peak or more, of fewer than eight layers, or of "
        "lines that are all different, and no other rule finds anything. The gain is that of half "
        "the batch.",
        cost="smaller micro-batches may take more time; BatchNorm sees fewer samples at once",
        change="halve the micro-batch and accumulate gradients over two, use bf16 autocast, or "
        "put the largest of these parts under torch.utils.checkpoint.checkpoint",
        find=_find_batch,
        is_general=True,
        is_last=True,
    ),
    Rule(
        code="UL144",
        title="the first step or the set-up needs more than all later ones",
        kind=Kind.FAULT,
        meaning="A warm-up with a larger batch, a check before training, weights that were made "
        "twice: the GPU has to be large enough for what happens once.",
        evidence="The peak is before the second step, and all later steps stay 20 % below it.",
        cost="nothing",
        change="make what is needed once smaller, or on the CPU",
        find=_find_first_step,
        is_general=True,
    ),
    Rule(
        code="UL147",
        title="tensors that live for a moment lift the peak",
        kind=Kind.CHOICE,
        meaning="An operation that makes a large tensor and reduces it at once, such as all pairs "
        "of distances, needs it in full for that moment.",
        evidence="Blocks that go before four others came, outside backward, are eight times as "
        "large as the next smaller tensor of the pass, and without them the peak is 20 % lower or "
        "more.",
        cost="chunks cost a little time",
        change="do it in chunks, in place (out=, *_ operations), or with an operation that never "
        "makes the large tensor",
        find=_find_spike,
        is_general=True,
    ),
)
