"""Closed-form answers from a model's configuration: what `ullage estimate` is.

found = ullage.estimate_training("llama-3.1-8b", gpu="h100-80gb", batch=1, length=4096)
found.fits, found.answer.estimate.terms
print(found.text())
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from ullage.estimate.training.answer import Answer, find_knobs, find_largest, rank_gpus
from ullage.estimate.training.estimate import estimate_training as _estimate
from ullage.estimate.training.recipe import Lora, Recipe
from ullage.models.config import Config
from ullage.models.find import Found, find_config

if TYPE_CHECKING:
    from ullage.estimate.training.layout import Layout
    from ullage.gpus.gpu import EstimateOnlyGpu, Gpu


# A model that reads tokens or sees images is asked for both in its own file; what it lacks is here.
_IMAGE_FIELD = "image_size"


class RecipeFields(TypedDict, total=False):
    """The fields of a `Recipe` by name; None is the field's default."""

    batch: int | None
    length: int | None
    image: int | None
    precision: str | None
    optimizer: str | None
    checkpointing: str | int | None
    attention: str | None
    accumulation: int | None
    clips_gradients: bool | None
    keeps_gradients: bool | None
    steps_in_backward: bool | None
    lora: Lora | int | None
    layout: Layout | None
    library: str | None
    loss: str | None
    gradients: str | None
    zeroes_late: bool | None
    packed: bool | None
    compiled: bool | None
    torch: str | None


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a training loop needs, from the configuration alone.

    Attributes:
        answer: the estimate and whatever else was asked.
    """

    answer: Answer

    @property
    def fits(self) -> bool | None:
        """True: even the most fits; False: not even the least does; None: between, or no GPU."""
        return self.answer.estimate.fits

    @property
    def document(self) -> dict[str, Any]:
        """The document, schema "ullage.estimate/1"."""
        from ullage.report.document.estimate import estimate_document

        return estimate_document(self.answer)

    @property
    def html(self) -> str:
        """One self-contained page; the document is in it."""
        from ullage.report.page.estimate import render_estimate_page

        return render_estimate_page(self.answer)

    def text(self, width: int = 80) -> str:
        """The report, as the terminal shows it."""
        from ullage.report.text.estimate import render_estimate

        return render_estimate(self.answer, width)


def estimate_training(
    model: str | Config,
    *,
    gpu: str | Gpu | EstimateOnlyGpu | None = None,
    which_gpu: bool = False,
    largest: str | None = None,
    knobs: bool = False,
    time: bool = False,
    price: float | None = None,
    interconnect: str | None = None,
    **recipe: Unpack[RecipeFields],
) -> Estimate:
    """What training a model needs; no torch, some milliseconds, and with `time` some tenths of a
    second.

    Args:
        model: a built-in name, a config.json or its folder, a repository of the hub; or a
            configuration that was read.
        gpu: of the catalogue; None: an H100's rules, and no verdict.
        which_gpu: rank the whole catalogue as well.
        largest: find the largest "batch", "length" or "image" that fits the GPU as well.
        knobs: look for what would save most as well.
        time: predict the time of a step on the GPU, and on each GPU of `which_gpu` that it fits.
        price: dollars for a GPU-hour, for what steps and tokens cost; implies `time`.
        interconnect: the links between GPUs, such as "nvlink+400Gb/s"; None: those that the GPU's
            own machines have; implies `time`.
        recipe: the fields of `ullage.estimate.training.recipe.Recipe`; lora also as the rank of
            adapters that are else as the defaults.

    Raises:
        SpecError: the model or GPU is not known, or a field is missing or contradicts another.
    """
    from ullage.errors import SpecError
    from ullage.gpus.catalog import find_entry, load_catalog
    from ullage.gpus.price import check_price

    source = Found(model, "") if isinstance(model, Config) else find_config(model)
    device = find_entry(gpu) if isinstance(gpu, str) else gpu
    if largest is not None and device is None:
        raise SpecError("largest: on which GPU? name one with gpu")
    how = make_recipe(source.config, **recipe)
    answer = Answer(
        _estimate(source.config, how, device),
        source.source,
        rank_gpus(source.config, how, load_catalog()) if which_gpu else (),
        None if largest is None or device is None
        else find_largest(source.config, how, device, largest),
        find_knobs(source.config, how, device) if knobs else (),
    )  # fmt: skip
    if time or price is not None or interconnect is not None:
        from ullage.estimate.time.answer import add_time

        answer = add_time(answer, source.config, device, check_price(price), interconnect)
    return Estimate(answer)


def make_recipe(config: Config, **fields: Unpack[RecipeFields]) -> Recipe:
    """A recipe in which what the model's own file says fills what was not said: an image model is
    trained on images of the size that it was made for.
    """
    values: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
    if "image" not in values:
        image = config.number(_IMAGE_FIELD, default=None)
        if image is not None:
            values["image"] = image
    if isinstance(values.get("lora"), int):
        values["lora"] = Lora(rank=values["lora"])
    return Recipe(**values)
