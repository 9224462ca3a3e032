"""What the estimate says of a case, beside what the phantom found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ullage.facts.families.config import Config
from ullage.facts.gpus.catalog import find_gpu
from ullage.log.category import Category
from ullage.players.eager.training.estimate import OUTSIDE, TrainingEstimate, estimate_training
from ullage.players.eager.training.layout import Layout
from ullage.players.eager.training.recipe import Lora, Recipe


@dataclass(frozen=True, slots=True)
class Row:
    """One case.

    Attributes:
        counted, estimated: bytes of parameters, gradients and optimizer states, by name; counted is
            None where the program does not count them.
        activation, peak: (phantom's, estimate's) bytes at the moment of the peak; of the peak what
            is allocated.
        low, high: ends of the estimate's peak.
        reserved: the phantom's; reserved_high: the estimate's upper end of it.
    """

    name: str
    family: str
    counted: Mapping[str, int] | None
    estimated: Mapping[str, int]
    activation: tuple[int, int]
    peak: tuple[int, int]
    low: int
    high: int
    reserved: int
    reserved_high: int

    @property
    def is_exact(self) -> bool | None:
        """Parameters, gradients and states agree to the byte; None where they were not counted."""
        return None if self.counted is None else dict(self.counted) == dict(self.estimated)

    @property
    def peak_error(self) -> float:
        """Of the allocated bytes."""
        return self.peak[1] / self.peak[0] - 1

    @property
    def activation_error(self) -> float:
        """Of the activations; of the peak's size where there are next to none."""
        found, said = self.activation
        return (said - found) / max(found, self.peak[0] // 100)

    @property
    def is_covered(self) -> bool:
        """The interval holds what the phantom allocated, and its end what it reserved."""
        return self.low <= self.peak[0] <= self.high and self.reserved <= self.reserved_high


def make_recipe(fields: Mapping[str, Any]) -> Recipe:
    """A recipe from the fields that are not its defaults."""
    plain = dict(fields)
    if plain.get("lora") is not None:
        plain["lora"] = Lora(**plain["lora"] | {"targets": tuple(plain["lora"]["targets"])})
    if "layout" in plain:
        plain["layout"] = Layout(**plain["layout"])
    return Recipe(**plain)


def compare(name: str, vector: Mapping[str, Any]) -> Row:
    """The estimate of a case that the phantom has run."""
    estimate = estimate_training(
        Config(name, vector["config"]), make_recipe(vector["recipe"]), find_gpu(vector["gpu"])
    )
    inside = [term for term in estimate.terms if term.name not in OUTSIDE]
    phantom = vector["phantom"]
    activations = estimate.peak.by_category.get(Category.ACTIVATION, 0)
    return Row(
        name=name,
        family=vector["family"],
        counted=phantom["counted"],
        estimated=_states(estimate),
        activation=(phantom["at_peak"].get("activation", 0), activations),
        peak=(phantom["peak_allocated_bytes"], estimate.allocated.likely),
        low=estimate.allocated.low,
        high=estimate.allocated.high,
        reserved=phantom["peak_reserved_bytes"],
        reserved_high=sum(term.high_bytes for term in inside),
    )


def _states(estimate: TrainingEstimate) -> dict[str, int]:
    """At the optimizer's step: all gradients and states are there."""
    at_step = estimate.peaks["optimizer"].requested_by_category
    names = {
        "parameters": Category.PARAMETER,
        "gradients": Category.GRADIENT,
        "optimizer_states": Category.OPTIMIZER_STATE,
    }
    return {name: at_step.get(category, 0) for name, category in names.items()}
