"""The model in bfloat16 where that is safe (torch's autocast), its parameters in float32.

Matrix products and convolutions take and give bfloat16; norms, softmax and losses stay in float32,
and so do the model's outputs, for what the program does with them. For float16 see
autocast_float16.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ullage.techniques.means.mixed_precision import compute_in
from ullage.techniques.technique import Action, Place, Semantics, Technique

if TYPE_CHECKING:
    from ullage.techniques.applying.target import Target


def _apply(target: Target, _: Action) -> None:
    import torch

    compute_in(target, torch.bfloat16, AUTOCAST.refuse)


AUTOCAST = Technique(
    name="autocast",
    does="computes in bfloat16 where that is safe (autocast), with parameters in float32",
    precondition="parameters are float32, and the program uses no autocast",
    proof="types of parameters, and autocast at each call, are looked at",
    semantics=Semantics.ROUNDING,
    place=Place.PROGRAM,
    reference="https://docs.pytorch.org/docs/stable/amp.html",
    apply=_apply,
)
