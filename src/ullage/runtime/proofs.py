"""The proofs in a ladder file, for people, and whether it is for the GPU at hand."""

from __future__ import annotations

from ullage.techniques.ladder_file import LadderFile
from ullage.units import format_bytes


def say_proofs(file: LadderFile) -> list[str]:
    """A line for each rung, and one where the GPU has less memory than that of the proofs."""
    lines = []
    for number, rung in enumerate(file.rungs):
        proof = rung.proof
        if proof is None:
            lines.append(f"rung {number} is proved for no {file.variable}")
            continue
        time = f", {1e3 * proof.step_s:.2f} ms a step" if proof.step_s else ""
        reserved, budget = map(format_bytes, (proof.reserved_bytes, file.budget_bytes))
        lines.append(
            f"rung {number} is proved up to {file.variable} {proof.size} on the phantom "
            f"{file.gpu}: {reserved} reserved of {budget}{time}"
        )
    total_bytes = _total_bytes()
    if total_bytes is not None and total_bytes < file.budget_bytes:
        lines.append(
            f"nothing is proved here: this GPU has {format_bytes(total_bytes)}, and the ladder was "
            f"made for {format_bytes(file.budget_bytes)}; make another with `ullage fit --ladder`"
        )
    return lines


def _total_bytes() -> int | None:
    """The memory of the present GPU; None: there is none, or it was not used yet."""
    import torch

    if not torch.cuda.is_initialized():
        return None
    return int(torch.cuda.mem_get_info()[1])
