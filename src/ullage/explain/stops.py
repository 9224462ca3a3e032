"""Where `--steps` ended a run, in words."""

from __future__ import annotations

from collections.abc import Iterable

from ullage.log.model import ExitKind, ProgramExit, StepKind, Stop


def find_stop(exits: Iterable[ProgramExit]) -> Stop | None:
    """Where the processes of a run were ended; of several the one that came least far. None: they
    ran to their end.
    """
    stops = [exit_.stop for exit_ in exits if exit_.kind is ExitKind.STEPS_REACHED and exit_.stop]
    return min(stops, key=lambda stop: (stop.kind is StepKind.TRAINING, stop.count), default=None)


def describe_stop(stop: Stop) -> str:
    """After what a run was stopped: "stopped by --steps 3 after 3 training steps"."""
    plural = "s" if stop.count > 1 else ""
    if stop.kind is StepKind.TRAINING:
        what = f"{stop.count} training step{plural}"
    else:
        what = f"{stop.count} forward{plural} without gradients; no training step seen"
    return f"stopped by --steps {stop.count} after {what}"
