"""Programs that run out of memory, and the edit of each that a finding describes."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FAULTS = ROOT / "tests" / "programs" / "faults"
EXAMPLES = ROOT / "examples"


@dataclass(frozen=True, slots=True)
class Program:
    """A program that runs out of memory.

    Attributes:
        name: as the page has it.
        argv: its words.
        gpu: on which it runs out; None: on an H100 that has as much memory as lies halfway between
            what the program and its edited twin need.
        edits: by the code of a finding, what makes of the program what the finding advises: flags
            that are added, and that edit in words.
    """

    name: str
    argv: tuple[str, ...]
    edits: dict[str, tuple[tuple[str, ...], str]]
    gpu: str | None = None


def _fault(name: str, edit: str, *codes: str, gpu: str | None = None) -> Program:
    """A program of tests/programs/faults, whose flag --clean makes the edit."""
    edits = dict.fromkeys(codes, (("--clean",), edit))
    return Program(name, (str(FAULTS / f"{name}.py"),), edits, gpu)


_NO_GRAD = "evaluation under torch.no_grad()"
_LOSSES = Program(
    "examples/growing_losses",
    (str(EXAMPLES / "growing_losses" / "train.py"), "--steps", "250"),
    dict.fromkeys(("UL111", "UL112", "UL153"), (("--detach",), "append loss.item()")),
    "t4",
)
PROGRAMS = (
    _fault("leaks_until_full", "outputs are not kept", "UL112", "UL153", gpu="t4"),
    _LOSSES,
    _fault("kept_graphs", "loss.item() is kept", "UL111", "UL112", "UL153"),
    _fault("unlimited_cache", "the cache has a limit", "UL112", "UL153"),
    _fault("forgotten_no_grad", _NO_GRAD, "UL114"),
    _fault("stale_output", "the output goes at the end of the step", "UL113", "UL116"),
    _fault("two_graphs", "backward() on each loss", "UL113"),
    _fault("second_weights", "the checkpoint is on the CPU", "UL105", "UL116"),
    _fault("mask_per_layer", "one mask for all layers", "UL132"),
    _fault("dead_weight", "what is done with goes", "UL116"),
    _fault("zeroed_gradients", "zero_grad() sets gradients to None", "UL104"),
    _fault("missing_zero_grad", "zero_grad() after each step", "UL103"),
    _fault("foreach_step", "the fused optimizer", "UL102"),
    _fault("cyclic_reference", "no closure refers to itself", "UL115", "UL153"),
    _fault("cyclic_context", "the context does not hold its output", "UL112", "UL115", "UL153"),
    _fault("converted_weights", "they are converted before the move", "UL107"),
    _fault("former_model", "the first model goes before the second comes", "UL108", "UL116"),
    _fault("stored_results", "results are moved to the CPU", "UL112", "UL153"),
    _fault("kept_evaluation", "logits are moved to the CPU", "UL112", "UL131", "UL153"),
    _fault("growing_outputs", "outputs are moved to the CPU", "UL112", "UL153"),
)
