"""One configuration that the estimate is held against, and how its program is called."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ullage.players.eager.training.recipe import Recipe

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Case:
    """A training loop.

    Attributes:
        name: of the row.
        config: the fields of a config.json.
        recipe: how it is trained.
        gpu: of `ullage gpus`.
        program: a file of this folder.
        options: of `ullage run`, such as a larger memory or the size of a job.
        head: the transformers class that has the loss; for train.py.
    """

    name: str
    config: Mapping[str, Any]
    recipe: Recipe
    gpu: str = "h100-80gb"
    program: str = "train.py"
    options: tuple[str, ...] = field(default=())
    head: str = "AutoModelForCausalLM"

    def arguments(self, path: Path) -> list[str]:
        """What the program is started with, the configuration being in a file."""
        return [str(path), json.dumps(changes(self.recipe) | {"head": self.head})]


def changes(recipe: Recipe) -> dict[str, Any]:
    """The fields of a recipe that are not its defaults."""
    plain = asdict(Recipe())
    return {name: value for name, value in asdict(recipe).items() if value != plain[name]}
