"""A server that may hold the objective: a GPU, how many, and the flags of its command.

candidate.words(command)        # the command line that starts it
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Final

from ullage.facts.families.kv_cache import PRECISIONS
from ullage.facts.gpus import Gpu
from ullage.ground.errors import SpecError
from ullage.ground.protocol.plain import Mark, Only, figure
from ullage.players.eager.serving.model_weights import FORMATS
from ullage.players.eager.serving.serving_plan import ServingPlan

ALLOWED: Final = ("fp8-cache", "fp8-weights")
"""The flags that change the model's numbers, tried only where the user allows it."""

_OPTIONS: Final = {
    "utilization": ("--gpu-memory-utilization",),
    "max_seqs": ("--max-num-seqs",),
    "max_batched_tokens": ("--max-num-batched-tokens",),
    "context": ("--max-model-len",),
    "kv": ("--kv-cache-dtype",),
    "weights": ("--quantization", "-q"),
    "tensor_parallel": ("--tensor-parallel-size", "-tp"),
}
_SWITCHES: Final = {
    "--enforce-eager": ("has_graphs", False),
    "--no-enable-prefix-caching": ("has_prefix_caching", False),
}
_NUMBERS: Final = ("max_seqs", "max_batched_tokens", "context", "tensor_parallel")


@dataclass(frozen=True, slots=True)
class Flags:
    """The flags that a command has already; the search leaves them unchanged.

    Attributes:
        fields: of a ServingPlan, by name.
    """

    fields: dict[str, object] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self.fields


def given_flags(command: Sequence[str]) -> Flags:
    """The flags of a command that the search would choose otherwise.

    Raises:
        SpecError: a number is none, or such a flag has no value.
    """
    fields: dict[str, object] = {}
    by_option = {option: name for name, options in _OPTIONS.items() for option in options}
    for index, word in enumerate(command):
        option, equals, value = word.partition("=")
        if option in _SWITCHES:
            name, switched = _SWITCHES[option]
            fields[name] = switched
        elif option in by_option:
            text = value if equals else "".join(command[index + 1 : index + 2])
            fields[by_option[option]] = _read(by_option[option], word, text)
    return Flags(fields)


def _read(name: str, word: str, text: str) -> object:
    try:
        if name in _NUMBERS:
            return int(text)
        if name == "utilization":
            return float(text)
    except ValueError:
        raise SpecError(f"{word!r}: found {text!r}; expected a number") from None
    if not text:
        raise SpecError(f"{word!r} has no value")
    if name == "kv":
        return "fp8" if text.startswith("fp8") else text if text in PRECISIONS else "auto"
    if name == "weights":  # of a checkpoint's own format the configuration says more
        return text if text in FORMATS else "auto"
    return text


@dataclass(frozen=True, slots=True)
class Candidate:
    """A server.

    Attributes:
        gpu: of the catalogue.
        plan: the sizes that its flags say; its defaults are vLLM's.
        chosen: the names of the plan's fields that the search set, in the order of the command.
    """

    gpu: Annotated[Gpu, Only("slug")]
    plan: Annotated[ServingPlan, Mark.NO_KEY]
    chosen: Annotated[tuple[str, ...], Mark.NO_KEY] = ()

    @figure
    def flags(self) -> tuple[str, ...]:
        """The flags that the search set, as in the command."""
        return tuple(map(self.flag, self.chosen))

    @figure
    def num_gpus(self) -> int:
        """GPUs that share the model."""
        return self.plan.tensor_parallel

    @property
    def total_bytes(self) -> int:
        """The bytes of all its GPUs; what "small" is measured by."""
        return self.gpu.total_bytes * self.num_gpus

    def with_fields(self, **fields: object) -> Candidate:
        """The same with other sizes, which become flags."""
        names = (*self.chosen, *(name for name in fields if name not in self.chosen))
        return replace(self, plan=replace(self.plan, **fields), chosen=names)  # type: ignore[arg-type]

    def without(self, name: str, value: object) -> Candidate:
        """The same without one flag; `value` is what it is then."""
        chosen = tuple(each for each in self.chosen if each != name)
        return replace(self, plan=replace(self.plan, **{name: value}), chosen=chosen)  # type: ignore[arg-type]

    def words(self, command: Sequence[str]) -> tuple[str, ...]:
        """The command line."""
        return (*command, *(word for name in self.chosen for word in self._flag(name)))

    def flag(self, name: str) -> str:
        """One of its flags, as in the command."""
        return " ".join(self._flag(name))

    def _flag(self, name: str) -> Iterator[str]:
        yield _OPTIONS[name][0]
        yield (
            f"{getattr(self.plan, name):g}"
            if name == "utilization"
            else str(getattr(self.plan, name))
        )
