"""Rules about optimizer states and what an optimizer's step needs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ullage.explain.moments.course import Phase
from ullage.explain.rules.case import Case, bytes_of
from ullage.explain.rules.rule import Found, Kind, Rule, found_at
from ullage.ground.units import format_bytes
from ullage.log.model import Category

_STATES_FRAC = 0.3
# Momentum alone, or two states of 8 bits beside weights in 16, are as large as the weights.
_LARGE_STATES = 1.5
_TEMPORARIES_FRAC = 0.1
# Of two fp32 states an 8-bit optimizer keeps a quarter, and its scales.
_EIGHT_BIT_GAIN = 0.74
# It keeps two vectors for each step of its history, and no 8-bit optimizer does that.
_LBFGS = "Optimizer.step#LBFGS"
_SHORTER_HISTORY = (
    "halve history_size of torch.optim.LBFGS: it keeps two vectors for each step of it"
)


def _find_states(case: Case) -> Iterator[Found]:
    states = bytes_of(case, Category.OPTIMIZER_STATE)
    owners = dict(case.device.owners_at_peak)
    if not case.is_known:  # what came before a trace has no stack, and is of every owner
        owners.pop(Category.UNATTRIBUTED, None)
    is_largest = states == max(owners.values(), default=0)
    parameters = bytes_of(case, Category.PARAMETER)
    is_small = case.is_known and states < _LARGE_STATES * parameters
    if not is_largest or is_small or not case.is_worth(states, _STATES_FRAC):
        return
    evidence = [f"optimizer states {format_bytes(states)}, parameters {format_bytes(parameters)}"]
    if case.is_known and parameters:
        evidence.append(f"{states / parameters:.1f} bytes of state for each byte of parameter")
    blocks = np.flatnonzero(case.is_live & case.is_of(Category.OPTIMIZER_STATE))
    notes = case.report.snapshot.annotations
    keeps_history = any(note.name.startswith(_LBFGS) for note in notes)
    gain_frac = 0.5 if keeps_history else _EIGHT_BIT_GAIN
    yield Found(
        what=f"optimizer states are {case.share(states)}",
        evidence=tuple(evidence),
        gain_bytes=int(states * gain_frac),
        change=_SHORTER_HISTORY if keeps_history else "",
        blocks=blocks,
        is_guess=not case.is_known,
        relief=case.relief(
            case.is_of(Category.OPTIMIZER_STATE), left_frac=1 - gain_frac, is_whole=False
        ),
    )


def _find_step_temporaries(case: Case) -> Iterator[Found]:
    if not case.is_known:
        return
    course = case.device.course
    at_peak = course.region_at(np.array([case.device.peak_event]))
    if course.phase[at_peak][0] != Phase.OPTIMIZER:
        return
    mask = case.is_of(Category.TEMPORARY, Category.UNATTRIBUTED) & case.born_in(Phase.OPTIMIZER)
    gain = case.gain(mask)
    if not case.is_worth(gain, _TEMPORARIES_FRAC):
        return
    blocks = np.flatnonzero(mask & case.is_live)
    what = f"the peak is in the optimizer's step, {case.share(gain)} of it temporaries"
    yield found_at(case, blocks, what, gain, case.relief(mask, is_whole=False))


RULES = (
    Rule(
        code="UL101",
        title="optimizer states dominate the peak",
        kind=Kind.CHOICE,
        meaning="Adam keeps two tensors for each parameter. In fp32 that is 8 bytes a parameter, "
        "four times as much as its weight in bf16.",
        evidence="The bytes of optimizer states at the peak are 30 % of it or more, the "
        "largest part of it, and one and a half times those of the parameters. The gain is "
        "what two 8-bit states would save if these are fp32.",
        cost="8-bit states: a little time for each step and a little noise in the update. Sharding "
        "(FSDP2, ZeRO-1): communication. SGD or Adafactor: another optimizer.",
        change="use bitsandbytes' AdamW8bit (or torchao.optim.AdamW8bit), or shard the states",
        find=_find_states,
    ),
    Rule(
        code="UL102",
        title="temporaries of the optimizer's step make the peak",
        kind=Kind.CHOICE,
        meaning="The foreach implementation updates all parameters at once, and needs temporaries "
        "as large as all of them.",
        evidence="The peak is inside optimizer.step(), and without what is allocated and freed "
        "there it would be 10 % lower or more.",
        cost="fused=True costs nothing where the optimizer has it; foreach=False is slower.",
        change="pass fused=True to the optimizer (or foreach=False)",
        find=_find_step_temporaries,
    ),
)
