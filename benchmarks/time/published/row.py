"""Rows of rows.csv: a recipe, which is run, and a figure, which is read when the run is done."""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a row's program is run; it knows nothing of the published time.

    Attributes:
        gpu: options of `ullage run` that name the GPU.
        steps: after how many training steps it is stopped; None: the program stops itself.
        environment, command: with {programs}, {data} and {repository} in place of folders.
    """

    name: str
    gpu: str
    world_size: int
    steps: int | None
    environment: Mapping[str, str]
    command: str

    def arguments(self, folders: Mapping[str, str]) -> tuple[str, ...]:
        """The arguments of `ullage run`, without those of its output and its interpreter."""
        stop = () if self.steps is None else ("--steps", str(self.steps))
        words = (_fill(word, folders) for word in self.command.split())
        return (
            *self.gpu.split(), "--world-size", str(self.world_size), "--rank", "0", *stop,
            "--", *words,
        )  # fmt: skip

    def variables(self, folders: Mapping[str, str]) -> dict[str, str]:
        """The environment variables that the row sets."""
        return {name: _fill(value, folders) for name, value in self.environment.items()}


@dataclass(frozen=True, slots=True)
class Figure:
    """What was published.

    Attributes:
        family: rows of one are ranked against each other.
        gpu, torch: as the source says.
        seconds: of a step, the median where several runs were published.
        slower, faster: seconds of the slowest and the fastest run.
        model: rows of one model are compared in pairs.
        settings: what of the run bears on the time of a step: the GPU, their number, tokens of one
            GPU in a step, ...
        note: what is not as it was published.
    """

    name: str
    family: str
    setting: str
    gpu: str
    torch: str
    seconds: float
    slower: float
    faster: float
    source: str
    model: str
    settings: Mapping[str, str]
    note: str


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds of a step by the clock, or why there are none.

    Attributes:
        kinds: the likely seconds that belong to each kind of work, most first; with those in which
            the device is idle they add up to the step.
    """

    low_s: float | None
    likely_s: float | None
    high_s: float | None
    torch: str
    wall_s: float
    error: str = ""
    kinds: Mapping[str, float] = field(default_factory=dict)


def read_recipes(path: Path = HERE / "rows.csv") -> Iterator[Recipe]:
    """How every row is run."""
    for cells in _cells(path):
        yield Recipe(
            name=cells["name"],
            gpu=cells["gpu"],
            world_size=int(cells["world_size"]),
            steps=int(cells["steps"]) if cells["steps"] else None,
            environment=json.loads(cells["environment"]),
            command=cells["command"],
        )


def read_figures(path: Path = HERE / "rows.csv") -> Iterator[Figure]:
    """What was published of every row."""
    for cells in _cells(path):
        tokens = int(cells["tokens"]) if cells["tokens"] else None
        runs = [
            step_seconds(float(word), cells["unit"], tokens) for word in cells["figures"].split()
        ]
        yield Figure(
            name=cells["name"],
            family=cells["family"],
            setting=cells["setting"],
            gpu=cells["published_gpu"],
            torch=cells["published_torch"],
            seconds=statistics.median(runs),
            slower=max(runs),
            faster=min(runs),
            source=cells["source"],
            model=cells["model"],
            settings={"GPU": cells["published_gpu"], **_settings(cells["settings"])},
            note=cells["note"],
        )


def step_seconds(figure: float, unit: str, tokens: int | None) -> float:
    """Seconds of a step from a published figure.

    Args:
        figure: in `unit`: ms/step, or tokens/s/GPU.
        tokens: of one GPU in a step (local batch x sequence length), for tokens/s/GPU.

    Raises:
        ValueError: the unit is neither, or the tokens are missing.
    """
    if unit == "ms/step":
        return figure / 1e3
    if unit == "tokens/s/GPU" and tokens is not None:
        return tokens / figure
    raise ValueError(f"{unit=}, {tokens=}; expected ms/step, or tokens/s/GPU with tokens")


def _cells(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _settings(text: str) -> dict[str, str]:
    """Settings written as name=value, with spaces between them."""
    return {name: value for name, _, value in (word.partition("=") for word in text.split())}


def _fill(text: str, folders: Mapping[str, str]) -> str:
    for name, folder in folders.items():
        text = text.replace(f"{{{name}}}", folder)
    return text
