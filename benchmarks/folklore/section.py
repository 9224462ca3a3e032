"""A claim as runs of programs, and the figures of them that answer it.

    section = SECTIONS["accumulation"]
    figures = section.figures({name: run(play, python) for name, play in section.plays.items()})

Below the records stand what figures are made of: `peak("long")` is the peak of the run "long".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Play:
    """A program of this folder with its arguments, and options of `ullage run`."""

    program: str
    options: str = ""

    @property
    def command(self) -> str:
        """What a reader types."""
        words = ("ullage run", self.options, "--", f"benchmarks/folklore/{self.program}")
        return " ".join(word for word in words if word)


@dataclass(frozen=True, slots=True)
class Played:
    """What a run left: its document, what the program printed, and that as JSON where it is."""

    document: dict[str, Any]
    text: str
    said: dict[str, Any]

    @property
    def device(self) -> dict[str, Any]:
        """The first device of the document."""
        found: dict[str, Any] = self.document["devices"][0]
        return found

    @property
    def peak(self) -> int:
        """The most bytes that the allocator gave out."""
        return int(self.device["peak_allocated_bytes"])


Runs = Mapping[str, Played]
Figure = Callable[[Runs], float]


@dataclass(frozen=True, slots=True)
class Row:
    """A line of a table: what it is about, what is said ("" for nothing), the figure, its form."""

    name: str
    what: str
    said: str
    of: Figure
    show: Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Section:
    """A claim: the runs, and their figures; without figures, what the programs print is shown."""

    plays: dict[str, Play]
    rows: tuple[Row, ...] = ()
    needs: str = ""
    """What the interpreter needs beyond examples/requirements.txt."""

    def figures(self, runs: Runs) -> dict[str, float]:
        """Each row's figure by its name."""
        return {row.name: row.of(runs) for row in self.rows}


def gb(figure: float) -> str:
    """10^9 bytes, as folklore has it."""
    return f"{figure / 1e9:,.1f} GB"


def mib(figure: float) -> str:
    """2^20 bytes, which folklore calls MB."""
    return f"{figure / 2**20:.0f} MiB"


def each(figure: float) -> str:
    """Bytes a parameter or weight."""
    return f"{figure:.2f} B"


def times(figure: float) -> str:
    """A factor."""
    return f"{figure:.1f}x"


def percent(figure: float) -> str:
    """A fraction."""
    return f"{round(100 * figure)} %"


def units(figure: float) -> str:
    """Outputs of a layer."""
    return f"{figure:.0f} units"


def printed(run: str, key: str) -> Figure:
    """A figure that a program printed."""
    return lambda runs: float(runs[run].said[key])


def peak(run: str) -> Figure:
    """The allocator's peak."""
    return lambda runs: runs[run].peak


def reported(run: str, key: str) -> Figure:
    """A figure of the run document's device."""
    return lambda runs: float(runs[run].device[key])


def layer(name: str, key: str) -> Figure:
    """What one layer of a network added."""
    return lambda runs: float(runs["run"].said["layers"][name][key])


def optimizer(run: str) -> Figure:
    """The optimizer's states at the peak."""
    return lambda runs: float(runs[run].device["at_peak"]["optimizer_state"])


def held_each(run: str) -> Figure:
    """Bytes a parameter between the passes."""
    return lambda runs: runs[run].said["held_bytes"] / runs[run].said["parameters"]


def kept_ratio(run: str) -> Figure:
    """What forward keeps for backward, over the weights."""
    return lambda runs: runs[run].said["kept_bytes"] / runs[run].said["weight_bytes"]


def saved(run: str, before: str, of: Callable[[str], Callable[[Runs], float]]) -> Figure:
    """The fraction by which a figure is less."""
    return lambda runs: 1 - of(run)(runs) / of(before)(runs)


def kept(run: str) -> Figure:
    """What forward keeps for backward."""
    return printed(run, "kept_bytes")


def fewer_times(run: str, before: str, of: Callable[[str], Figure]) -> Figure:
    """How many times a figure was what it is."""
    return lambda runs: of(before)(runs) / of(run)(runs)


def optimizers_part(runs: Runs) -> float:
    """Master weights and moments, bytes a parameter."""
    parts, said = runs["masters"].device["at_peak"], runs["masters"].said
    masters = parts["parameter"] - said["weight_bytes"]
    return float((masters + parts["optimizer_state"]) / said["parameters"])
