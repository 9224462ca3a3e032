"""Further answers of an estimate: which GPUs fit, the largest batch, which changes save memory.

rank_gpus(config, recipe, load_catalog())
find_largest(config, recipe, gpu, "batch")
find_knobs(config, recipe, gpu)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

from ullage.facts.families.config import Config
from ullage.ground.errors import SpecError
from ullage.ground.protocol.plain import As, Mark, figure, plain
from ullage.players.eager.term import ESTIMATE_SCHEMA
from ullage.players.eager.training.devices import find_context
from ullage.players.eager.training.estimate import TrainingEstimate, estimate_training
from ullage.players.eager.training.layout import ALONE
from ullage.players.eager.training.recipe import Lora, Recipe
from ullage.players.eager.training.torch_version import choose_torch, has_code, parse_torch

if TYPE_CHECKING:
    from ullage.clock.price import Expense
    from ullage.clock.step_time import Interval, StepTime
    from ullage.facts.gpus.gpu import Entry, Gpu


KNOBS: Final = ("batch", "length", "image")
_MOST: Final = 1 << 24
_COUNTS: Final = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class GpuRow:
    """A GPU of the catalogue, and how the job fares on it.

    Attributes:
        gpu: its name in the catalogue.
        count: GPUs that the job needs: those of the recipe's layout; for a recipe of one GPU, as
            many as fit it with FSDP2; None: more than 64, or more than the layout has.
        capacity_bytes: memory of one GPU.
        bytes, high_bytes: memory that the job needs on each GPU, likely and at most.
        headroom_bytes: memory that is left on each at most need; negative where it does not fit.
        step_s: the time of a step; None: nobody asked, the job does not fit, or nothing is known.
    """

    gpu: str
    count: int | None
    capacity_bytes: int
    bytes: int
    high_bytes: int
    headroom_bytes: int
    step_s: Interval | None = None


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest value of a knob that fits.

    Attributes:
        knob: "batch", "length" or "image".
        gpu: the GPU that it fits on.
        value: the largest value that fits; None where even 1 does not.
        high_bytes: what it needs at most.
    """

    knob: str
    gpu: str
    value: int | None
    high_bytes: int


@dataclass(frozen=True, slots=True)
class Knob:
    """A change of the recipe, and what it does.

    Attributes:
        name: such as "checkpointing full".
        saved_bytes: bytes that the peak is lower.
        more_compute: additional floating-point operations of a step, as a share of today's.
        is_same_training: the training computes the same.
        remark: what changes besides memory.
    """

    name: str
    saved_bytes: int
    more_compute: float
    is_same_training: bool
    remark: str


@dataclass(frozen=True, slots=True)
class Answer:
    """An estimate, and the further answers that the user asked for.

    Attributes:
        estimate: the estimate of the job.
        source: where the model's configuration is from; "" where it is the user's own file.
        gpus: the catalogue, GPUs that fit first; empty where the user did not ask.
        largest: the largest batch, length or image; None where the user did not ask.
        knobs: changes that save memory, best ratio first; empty where the user did not ask.
        time: the time of a step; None where the user did not ask.
        expense: what steps and tokens cost; None without a price.
    """

    SCHEMA: ClassVar[str] = ESTIMATE_SCHEMA

    estimate: Annotated[TrainingEstimate, Mark.FLAT]
    source: Annotated[str, Mark.NO_KEY] = ""
    gpus: Annotated[tuple[GpuRow, ...], As("which_gpu")] = ()
    largest: Largest | None = None
    knobs: tuple[Knob, ...] = ()
    time: Annotated[StepTime | None, Mark.NO_KEY] = None
    expense: Annotated[Expense | None, Mark.NO_KEY] = None

    @figure
    def kind(self) -> str:
        """Serving and other work have documents of the same schema."""
        return "training"

    @figure
    def model(self) -> Mapping[str, Any]:
        """The model and its size."""
        estimate = self.estimate
        return {
            "name": estimate.model,
            "source": self.source,
            "num_parameters": estimate.num_parameters,
            "num_trainable": estimate.num_trainable,
            "num_rank_parameters": estimate.num_rank_parameters,
        }

    @figure
    def step_time(self) -> Annotated[Mapping[str, Any] | None, As("time")]:
        """The time of a step and what it costs, as in the document of a run."""
        time = self.time
        return time if time is None else {"rank": None, **plain(time), "price": self.expense}


def rank_gpus(config: Config, recipe: Recipe, gpus: Iterable[Gpu]) -> tuple[GpuRow, ...]:
    """All GPUs: those that fit the job alone, smallest first; those that need FSDP2 on several,
    fewest first; then those of which 64 are not enough. GPUs that the recipe's PyTorch has no code
    for are left out.
    """
    played = _Played(config, recipe)
    torch = None if recipe.torch is None else parse_torch(recipe.torch)
    rows = [
        _row(gpu, played, recipe)
        for gpu in gpus
        if torch is None or has_code(torch, gpu.compute_capability)
    ]
    return tuple(sorted(rows, key=lambda row: (row.count or _MOST, row.capacity_bytes)))


class _Played:
    """Estimates, one for each compute capability: its GPUs differ only in size and context."""

    def __init__(self, config: Config, recipe: Recipe) -> None:
        self.config = config
        self.recipe = recipe
        self.known: dict[tuple[tuple[int, int], int], tuple[int, int]] = {}

    def needs(self, gpu: Gpu, count: int) -> tuple[int, int]:
        """(likely, most) bytes on each GPU of that number."""
        key = (gpu.compute_capability, count)
        if key not in self.known:
            layout = self.recipe.layout
            if count > 1:
                layout = replace(layout, data=count, sharding="fsdp")
            estimate = estimate_training(self.config, replace(self.recipe, layout=layout), gpu)
            inside = [term for term in estimate.terms if term.name != "context"]
            self.known[key] = (
                sum(term.bytes for term in inside),
                sum(term.high_bytes for term in inside),
            )
        likely, most = self.known[key]
        torch = choose_torch(self.recipe.torch, gpu.compute_capability)
        context = find_context(gpu, torch)
        return likely + context.likely, most + context.high


def _row(gpu: Gpu, played: _Played, recipe: Recipe) -> GpuRow:
    counts = _COUNTS if recipe.layout == ALONE and recipe.lora is None else _COUNTS[:1]
    likely, most = played.needs(gpu, 1)
    for count in counts:
        likely, most = played.needs(gpu, count)
        if most <= gpu.total_bytes:
            count *= recipe.layout.num_gpus
            return GpuRow(gpu.slug, count, gpu.total_bytes, likely, most, gpu.total_bytes - most)
    return GpuRow(gpu.slug, None, gpu.total_bytes, likely, most, gpu.total_bytes - most)


def find_largest(config: Config, recipe: Recipe, gpu: Entry, knob: str) -> Largest:
    """The largest value of a knob that the model accepts and whose upper bound fits.

    Memory grows with the knob, so the interval between a value that fits and one that does not is
    halved until they are neighbours.

    Raises:
        SpecError: the knob is not one of batch, length and image, or the model does not have it.
    """
    if knob not in KNOBS:
        raise SpecError(f"largest: found {knob!r}, expected {', '.join(KNOBS)}")
    if knob != "batch" and getattr(recipe, knob) is None:
        raise SpecError(f"largest: the model has no {knob}")

    def needs(value: int) -> int:
        changed: Any = {knob: value}
        return estimate_training(config, replace(recipe, **changed), gpu).high_bytes

    def fits(value: int) -> bool:
        try:
            return needs(value) <= gpu.total_bytes
        except SpecError:
            if value <= getattr(recipe, knob):
                raise
            return False  # more than the model accepts, such as more tokens than positions

    value = bisect(fits)
    return Largest(knob, gpu.slug, value, needs(value or 1))


def bisect(fits: Callable[[int], bool], most: int = _MOST) -> int | None:
    """The largest number, about `most` at most, that fits; None where 1 does not.

    Args:
        fits: whether a number fits; all below a number that fits must fit, too.
        most: where to stop looking.
    """
    if not fits(1):
        return None
    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
        if high > most:
            return low
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


def find_knobs(config: Config, recipe: Recipe, gpu: Entry | None) -> tuple[Knob, ...]:
    """Changes that save memory: first those that keep the training the same, in order of bytes
    saved for each per cent of additional compute.
    """
    now = estimate_training(config, recipe, gpu)
    knobs = []
    for name, changed, is_same, remark in _changes(recipe):
        try:
            then = estimate_training(config, changed, gpu)
        except SpecError:
            continue  # not every model has every knob
        saved = now.bytes - then.bytes
        if saved > 0:
            knobs.append(Knob(name, saved, then.work / now.work - 1, is_same, remark))
    return tuple(sorted(knobs, key=_bargain))


def _bargain(knob: Knob) -> tuple[bool, float]:
    """Same training first; then by bytes for each per cent of additional compute."""
    return not knob.is_same_training, -knob.saved_bytes / max(100 * knob.more_compute, 1)


def _changes(recipe: Recipe) -> list[tuple[str, Recipe, bool, str]]:
    """Recipes that may need less: (name, recipe, whether the training is the same, remark)."""
    changes = []
    if recipe.checkpointing == "none":
        changes += [
            (f"checkpointing {kind}", replace(recipe, checkpointing=kind), True, "same result")
            for kind in ("selective", "full")
        ]
    if recipe.attention == "eager":
        changes.append(("attention sdpa", replace(recipe, attention="sdpa"), True, "same result"))
    if recipe.batch > 1:
        halved = replace(recipe, batch=recipe.batch // 2, accumulation=2 * recipe.accumulation)
        changes.append(("half the batch, twice", halved, True, "same result without batch norm"))
    if recipe.precision == "fp32":
        changes.append(("amp-bf16", replace(recipe, precision="amp-bf16"), False, "other rounding"))
    if recipe.precision not in ("bf16", "fp16"):
        changes.append(("bf16", replace(recipe, precision="bf16"), False, "other rounding"))
    if recipe.loss_kind != "fused":
        changes.append(("fused loss", replace(recipe, loss="fused"), True, "Liger Kernel"))
    if recipe.lora is None:
        adapters = replace(recipe, lora=Lora(targets=("all-linear",)))
        changes.append(("LoRA 16", adapters, False, "other training"))
    elif not recipe.lora.is_quantized:
        quantized = replace(recipe, lora=replace(recipe.lora, is_quantized=True))
        changes.append(("QLoRA", quantized, False, "frozen weights in 4 bits"))
    if recipe.layout.num_replicas > 1 and recipe.layout.num_shards == 1:
        views = replace(recipe, layout=replace(recipe.layout, buckets="views"))
        changes.append(("gradients in DDP's buckets", views, True, "same result"))
    if recipe.optimizer in ("adam", "adamw"):
        changes.append(
            ("8-bit AdamW", replace(recipe, optimizer="adamw-8bit"), False, "other rounding")
        )
        changes.append(
            ("Adafactor", replace(recipe, optimizer="adafactor"), False, "other training")
        )
    if recipe.length is not None and recipe.length > 1:
        halved = replace(recipe, length=recipe.length // 2)
        changes.append(("half the length", halved, False, "other training"))
    return changes
