"""The program that a plan is for, and how another program differs from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

# Differences of one kind that a message lists.
_MOST_LISTED = 3


@dataclass(frozen=True, slots=True)
class MadeFor:
    """The program that a plan is for.

    Attributes:
        torch: the version of torch; the version of CUDA that it was built for does not matter.
        model: the class of the outermost module.
        num_parameters: the number of elements of all parameters.
        modules: by path, the class of each module that the actions of the plan name.
        optimizer: the class of the optimizer, or of several ("AdamW, Muon"); None if there is none.
    """

    torch: str
    model: str
    num_parameters: int
    modules: Mapping[str, str] = field(default_factory=dict)
    optimizer: str | None = None

    def differences(self, made_for: MadeFor) -> list[str]:
        """How another program differs from this one, for people; empty if it does not."""
        pairs = (
            ("torch", public_version(self.torch), public_version(made_for.torch)),
            ("the model", self.model, made_for.model),
            (
                "the number of parameters",
                f"{self.num_parameters:,}",
                f"{made_for.num_parameters:,}",
            ),
            ("the optimizer", self.optimizer, made_for.optimizer),
        )
        differences = [
            f"{what} is {theirs or 'none'}, and was {ours or 'none'}"
            for what, ours, theirs in pairs
            if ours != theirs
        ]
        classes = made_for.modules
        missing = [f"there is no module {path}" for path in self.modules if path not in classes]
        changed = [
            f"{path} is a {classes[path]}, and was a {kind}"
            for path, kind in self.modules.items()
            if path and classes.get(path, kind) != kind
        ]
        return differences + _shorten(missing) + _shorten(changed)


def _shorten(texts: list[str]) -> list[str]:
    """The first texts of a list, and how many more there are."""
    num_more = len(texts) - _MOST_LISTED
    return texts[:_MOST_LISTED] + ([f"and {num_more} more like it"] if num_more > 0 else [])


def public_version(version: str) -> str:
    """A version of torch without its build: "2.15.0" for "2.15.0+cu132"."""
    return version.partition("+")[0]
