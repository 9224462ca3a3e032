"""Rules about what lies in memory and is not used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ullage.explain.owners.holders import Leftover
from ullage.explain.rules.case import MIN_BYTES, Case
from ullage.explain.rules.rule import Found, Kind, Rule, found_at
from ullage.explain.trial import Relief
from ullage.ground.protocol.holder_chains import remedy_of_root, root_of
from ullage.ground.units import format_bytes
from ullage.log.model import Category, Int64Array

_DEAD_FRAC = 0.1
_CACHE_FRAC = 0.4


def _find_dead(case: Case) -> Iterator[Found]:
    recorded = case.device.recorded
    dead = None if recorded is None else recorded.dead
    if dead is None or case.is_given_up:
        return
    gain = case.peak_bytes - dead.lower_peak_bytes
    if not case.is_worth(gain, _DEAD_FRAC):
        return
    yield Found(
        what=f"{case.share(dead.size_bytes)} are live and never used again",
        evidence=(
            *_list_dead(case, dead.blocks, dead.last_use),
            *case.list_holders(dead.blocks[:1]),
        ),
        gain_bytes=gain,
        blocks=dead.blocks,
        relief=Relief(dead.blocks, dead.last_use[dead.blocks]),
    )


def _list_dead(case: Case, blocks: Int64Array, last_use: Int64Array) -> tuple[str, ...]:
    """The sites with most bytes, of more than some bytes, and when each was last used."""
    sites: dict[str, list[int]] = {}
    for block in blocks.tolist():
        sites.setdefault(case.site(block), []).append(block)
    least = min(max(int(case.size_bytes[mine].sum()) for mine in sites.values()), MIN_BYTES)
    return case.list_groups({
        f", {when_used(case, int(last_use[mine].max()))}: {site}": mine
        for site, mine in sites.items() if case.size_bytes[mine].sum() >= least
    })  # fmt: skip


def when_used(case: Case, event: int) -> str:
    """When something was last used: "last used in step 2, backward, 3 steps before the peak"."""
    course = case.device.course
    described = course.describe(event - 1)
    steps = int(np.diff(course.step_at(np.array([event, case.device.peak_event])))[0])
    ago = f", {steps} step{'s' * (steps > 1)} before the peak" if steps > 0 else ""
    return f"last used in {described}{ago}" if described else "not used any more"


def _find_leftovers(case: Case) -> Iterator[Found]:
    """The blocks that no variable held any more before the peak; or else when memory ran out."""
    recorded = case.device.recorded
    leftovers = () if recorded is None else recorded.holders.leftovers
    peak = case.device.peak_event
    before_peak = [each for each in leftovers if each.event <= peak and case.is_live[each.block]]
    at_oom = [each for each in leftovers if each.at_oom]
    rows = max(before_peak, at_oom, key=lambda some: _bytes_of(case, some))
    size = _bytes_of(case, rows)
    if not case.is_worth(size):
        return
    blocks = np.array([each.block for each in rows], dtype=np.int64)
    blocks, death = _with_graphs(case, rows), case.device.replay.blocks.death.copy()
    mask = np.isin(np.arange(len(death)), blocks)
    relief, gain, when = None, case.sum(mask), " when memory ran out"
    if rows is before_peak:
        death[blocks] = max(each.event for each in rows)
        relief, gain, when = case.relief(mask, death), case.gain(mask, death), " at the peak"
    saved = case.sum(mask) - size
    graph = f"{format_bytes(saved)} that their graphs saved for backward, held with them"
    names: dict[str, list[int]] = {}  # "1.2 GiB in 2 blocks held by Out[3]"
    for each in rows:
        names.setdefault(f" held by {' and '.join(each.chains[:2])}", []).append(each.block)
    roots = dict.fromkeys(root_of(chain) for each in rows for chain in each.chains)
    yield Found(
        what=f"{case.share(size + saved)} are held{when} by outputs of cells or exceptions alone",
        evidence=(*case.list_groups(names, "by {} other names"), *[graph] * (saved > 0)),
        gain_bytes=gain,
        change="; ".join(remedy_of_root(root) for root in roots),
        blocks=blocks,
        relief=relief,
    )


def _with_graphs(case: Case, leftovers: Sequence[Leftover]) -> Int64Array:
    """The blocks, and the activations of the passes whose graphs they hold."""
    mask = np.zeros(len(case.is_live), dtype=np.bool_)
    with_graph = [each.block for each in leftovers if each.has_graph and case.grad[each.block]]
    own_pass = np.isin(case.region, case.region[with_graph])
    mask |= own_pass & case.is_live & case.grad & case.is_of(Category.ACTIVATION)
    mask[[each.block for each in leftovers]] = True
    return np.flatnonzero(mask)


def _bytes_of(case: Case, leftovers: Sequence[Leftover]) -> int:
    return sum(int(case.size_bytes[each.block]) for each in leftovers)


def _find_cache(case: Case) -> Iterator[Found]:
    if not case.is_known:
        return
    numbers = np.flatnonzero(case.is_live & case.is_of(Category.KV_CACHE))
    size = int(case.size_bytes[numbers].sum())
    if not case.is_worth(size, _CACHE_FRAC):
        return
    recorded = case.device.recorded
    tokens = None if recorded is None else recorded.tokens
    rate = ""
    if tokens is not None:
        each = f"{format_bytes(tokens.token_bytes)} for each token of all sequences together"
        rate = f"{each}, {tokens.num_tokens:,} tokens at the end"
    what = f"keys and values of earlier tokens are {case.share(size)}"
    relief = case.relief(case.is_of(Category.KV_CACHE), left_frac=0.5, is_whole=False)
    yield found_at(case, numbers, what, size // 2, relief, evidence=(rate,) if rate else ())


RULES = (
    Rule(
        code="UL116",
        title="memory is held that is never used again",
        kind=Kind.FAULT,
        meaning="A name, a list, an attribute or a traceback keeps a tensor after the last "
        "operation that reads it: raw data beside what was made of it, logits through the whole "
        "backward pass, a part of a model that has done its work.",
        evidence="The last kernel, library call or copy that got an address in a block came before "
        "the peak, and the block is freed later, or lay idle for two whole steps when the program "
        "ended. Without such blocks the peak is 10 % lower or more. Runs that ullage recorded "
        "only.",
        cost="nothing, or a copy back where it is needed after all",
        change="let it go after its last use: del the name, return from the function, set_to_none, "
        "module.cpu(), no reference in a list, a hook or a traceback",
        find=_find_dead,
        is_general=True,
    ),
    Rule(
        code="UL117",
        title="outputs of cells or an exception hold memory",
        kind=Kind.FAULT,
        meaning="A notebook keeps the value of each cell (Out[n], _n, _), and the exception that "
        "ended a cell with all variables of its frames (sys.last_traceback); an exception that a "
        "program keeps, or is handling, holds as much. After an OOM that is the memory that is "
        "missing for the next try.",
        evidence="In the searches for names from a moment before the peak on, or before memory ran "
        "out, no variable held these tensors, only outputs of cells and exceptions did. A search "
        "ends after 20,000 objects, and is made after steps 4, 16, 64 and so on, when memory runs "
        "out, and after each cell under `ullage.record.attach()`.",
        cost="nothing; a value or a traceback that is looked at once more",
        change="%reset -f out; run a cell that fails at once, such as 1/0; keep str(error) and not "
        "the exception, and retry after the except, not in it",
        find=_find_leftovers,
    ),
    Rule(
        code="UL136",
        title="the KV cache dominates the peak",
        kind=Kind.CHOICE,
        meaning="Keys and values of all earlier tokens, of every layer and every sequence of the "
        "batch, grow with the length and with the batch.",
        evidence="The caches that the model was handed or gave back are 40 % of the peak or more. "
        "The gain is that of half the bytes for each element.",
        cost="a quantised cache loses a little precision and takes a little time; a window forgets",
        change='keep it in 8 bits (transformers: cache_implementation="quantized"; vLLM: '
        "--kv-cache-dtype fp8), batch fewer sequences, or use a model with fewer KV heads or a "
        "sliding window",
        find=_find_cache,
    ),
)
