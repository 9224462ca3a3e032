"""Computes in bfloat16 where that is safe (torch's autocast); parameters stay in float32.

Matrix products and convolutions take and return bfloat16. Norms, softmax and losses stay in
float32. The outputs of the model are converted to float32, because the program may compute with
them. autocast_float16.py does the same with float16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ullage.act.techniques.means.mixed_precision import compute_in
from ullage.act.techniques.technique import Action, Place, Semantics, Technique

if TYPE_CHECKING:
    from ullage.act.techniques.applying.target import Target


def _apply(target: Target, _: Action) -> None:
    import torch

    compute_in(target, torch.bfloat16, AUTOCAST.refuse)


AUTOCAST = Technique(
    name="autocast",
    does="computes in bfloat16 where that is safe (autocast), with parameters in float32",
    precondition="parameters are float32, and the program does not use autocast itself",
    proof="parameter dtypes are checked once, and autocast at each call",
    semantics=Semantics.ROUNDING,
    place=Place.PROGRAM,
    reference="https://docs.pytorch.org/docs/stable/amp.html",
    apply=_apply,
)
