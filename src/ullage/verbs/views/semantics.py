"""Describes how a plan changes the results of the training.

This is about the computation of each rank, not about how ranks share the work.
"""

from __future__ import annotations

from collections.abc import Sequence

from ullage.act.techniques.catalog import TECHNIQUES, semantics_of
from ullage.act.techniques.technique import Action, Place, Semantics

_PLANS = {
    Semantics.SAME: "a plan",
    Semantics.ROUNDING: "a plan of other rounding",
    Semantics.TRAINING: "a plan of another training",
}


def name_kind(actions: Sequence[Action]) -> str:
    """Names the kind of a plan with these actions: "a plan of other rounding"."""
    return _PLANS[semantics_of(actions)]


def say_changes(actions: Sequence[Action]) -> str:
    """Lists the changes: "What it changes: other rounding: bf16_states"."""
    training = _names(actions, Semantics.TRAINING)
    rounding = _names(actions, Semantics.ROUNDING)
    reordered = [action.technique for action in actions if TECHNIQUES[action.technique].reorders]
    parts = [
        f"another training: {training}" if training else "",
        f"other rounding: {rounding}" if rounding else "",
        f"another order of sums: {', '.join(reordered)}" if reordered else "",
    ]
    text = "; ".join(part for part in parts if part)
    if training or rounding:
        return f"What it changes: {text}"
    return f"It computes the same, in {text}" if text else "It computes the same"


def _names(actions: Sequence[Action], kind: Semantics) -> str:
    return ", ".join(
        action.technique
        for action in actions
        if TECHNIQUES[action.technique].semantics is kind
        and TECHNIQUES[action.technique].place is not Place.RANKS
    )
