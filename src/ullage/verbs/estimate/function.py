"""Closed-form answers from a model's configuration: what `ullage estimate` is.

found = ullage.estimate_training("llama-3.1-8b", gpu="h100-80gb", batch=1, length=4096)
found.fits, found.answer.estimate.terms
print(found.text())
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ullage.answers.verb_answer import VerbAnswer
from ullage.facts.families.config import Config
from ullage.facts.families.find import Found, find_config
from ullage.ground.errors import SpecError
from ullage.ground.protocol.option import options_of, takes
from ullage.ground.protocol.plain import Mark
from ullage.players.eager.training.answer import Answer, find_knobs, find_largest, rank_gpus
from ullage.players.eager.training.estimate import complete
from ullage.players.eager.training.estimate import estimate_training as _estimate
from ullage.players.eager.training.layout import Layout
from ullage.players.eager.training.recipe import Lora, Recipe
from ullage.verbs.estimate.options import TrainingOptions

if TYPE_CHECKING:
    from ullage.answers.block_kinds import Blocks
    from ullage.verbs.explain.function import Explanation


@dataclass(frozen=True, slots=True)
class Estimate(VerbAnswer):
    """The memory of a training loop, from the configuration alone.

    Attributes:
        answer: the estimate and whatever else was asked.
    """

    answer: Annotated[Answer, Mark.FLAT]

    @property
    def fits(self) -> bool | None:
        """True: even the most fits; False: not even the least does; None: between, or no GPU."""
        return self.answer.estimate.fits

    @property
    def exit_code(self) -> int:
        """The exit code of the command line: 1 where not even the least fits, else 0."""
        return int(self.fits is False)

    @property
    def explanation(self) -> Explanation:
        """Its log, explained as that of any run: owners, modules and findings."""
        from ullage.explain.rules.registry import find_findings
        from ullage.explain.snapshot import explain_snapshot
        from ullage.players.eager.training.log import write_log
        from ullage.verbs.explain.function import Explanation
        from ullage.verbs.views.views import ExplainView

        report = explain_snapshot(write_log(self.answer.estimate))
        return Explanation(ExplainView(self.answer.estimate.model, report, find_findings(report)))

    @property
    def html(self) -> str:
        """One self-contained page, as of a run: the map of addresses, the timeline, the findings,
        the report; the document is in it.
        """
        from ullage.verbs.estimate.page import render_estimate_page

        return render_estimate_page(self.answer, self.explanation.view)

    def export(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Writes its log, as `Explanation.export`."""
        return self.explanation.export(path, force=force)

    def blocks(self, *, full: bool = False) -> Blocks:
        """The blocks of its report."""
        from ullage.verbs.estimate.text import estimate_blocks

        return estimate_blocks(self.answer)


@takes(TrainingOptions)
def estimate_training(options: TrainingOptions) -> Estimate:
    """Estimates the memory of training a model; no torch, some milliseconds, and with `time` some
    tenths of a second. Without a GPU: an H100's rules, and no verdict.

    Raises:
        SpecError: the model or GPU is not known, or a field is missing or contradicts another.
    """
    from ullage.facts.gpus.catalog import find_entry, load_catalog
    from ullage.facts.gpus.price import check_price

    model, largest = options.model, options.largest
    if not isinstance(model, str | Config):
        raise SpecError(f"model={model!r} is not a model; expected a name, or a configuration")
    source = find_config(model) if isinstance(model, str) else Found(model, "")
    device = None if options.gpu is None else find_entry(options.gpu)
    if largest is not None and device is None:
        raise SpecError("largest: on which GPU? name one with gpu")
    how = make_recipe(source.config, options)
    answer = Answer(
        _estimate(source.config, how, device),
        source.source,
        rank_gpus(source.config, how, load_catalog()) if options.which_gpu else (),
        None if largest is None or device is None
        else find_largest(source.config, how, device, largest),
        find_knobs(source.config, how, device) if options.knobs else (),
    )  # fmt: skip
    if options.time or options.price is not None or options.interconnect is not None:
        from ullage.players.eager.time.answer import add_time

        price = check_price(options.price)
        answer = add_time(answer, source.config, device, price, options.interconnect)
    return Estimate(answer)


def make_recipe(config: Config, options: TrainingOptions) -> Recipe:
    """The recipe of the options; what the model's own file says fills what they do not."""
    names = {field.name for field in fields(Recipe)}
    given = _given(
        {name: getattr(options, name) for name in names & options_of(TrainingOptions).keys()}
    )
    layout = _given(
        {
            "data": options.data, "sharding": options.sharding, "tensor": options.tensor,
            "pipeline": options.pipeline, "sequence": options.sequence_parallel,
            "context": options.context_parallel, "expert": options.expert_parallel,
            "micro_batches": options.micro_batches, "offload": options.offload,
            "nvme": options.nvme, "buckets": options.buckets, "stage": options.stage,
        }
    )  # fmt: skip
    recipe = Recipe(
        **given | {"lora": _lora(options), "compiled": options.compile}, layout=Layout(**layout)
    )
    return complete(config, recipe)


def _given(values: dict[str, Any]) -> dict[str, Any]:
    """The options that are neither left out nor off."""
    return {
        name: value for name, value in values.items() if value is not None and value is not False
    }


def _lora(options: TrainingOptions) -> Lora | None:
    """The adapters that are trained beside frozen weights; None: all parameters are trained."""
    given = _given(
        {
            "targets": tuple(options.lora_targets) or None, "dtype": options.lora_dtype,
            "dropout": options.lora_dropout, "is_quantized": options.quantize is not None,
        }
    )  # fmt: skip
    if options.lora is not None:
        return Lora(rank=options.lora, has_double_scales=options.quantize != "nf4", **given)
    if given:
        raise SpecError(
            "lora_targets, lora_dtype, lora_dropout and quantize say how adapters "
            "are trained; add --lora RANK"
        )
    return None
