"""Closed-form answers from a model's configuration: what `ullage estimate` is.

found = ullage.estimate_training("llama-3.1-8b", gpu="h100-80gb", batch=1, length=4096)
found.fits, found.answer.estimate.terms
print(found.text())

What is served beside text has answers of its own:

ullage.estimate_speech("whisper-large-v3", 32, at_once=8, gpu="l4")
ullage.estimate_diffusion("sd15-unet", "vae=sd-vae,text=clip-vit-l14", gpu="rtx-4090")
ullage.estimate_index("hnsw:vectors=10M,width=768", gpu="l4")
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from ullage.errors import SpecError
from ullage.estimate.training.answer import Answer, find_knobs, find_largest, rank_gpus
from ullage.estimate.training.estimate import complete
from ullage.estimate.training.estimate import estimate_training as _estimate
from ullage.estimate.training.layout import Layout
from ullage.estimate.training.recipe import Lora, Recipe
from ullage.models.config import Config
from ullage.models.find import Found, find_config
from ullage.protocol.options.estimate import ModelConfig, TrainingOptions
from ullage.protocol.options.option import options_of, takes
from ullage.protocol.plain import document_of

if TYPE_CHECKING:
    from ullage.api.explain import Explanation
    from ullage.estimate.workloads.answer import WorkloadEstimate


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
        """The document, schema "ullage.estimate/2"."""
        return document_of(self.answer)

    @property
    def explanation(self) -> Explanation:
        """Its log, explained as that of any run: owners, modules and findings; `export` writes it,
        for `explain_file`, `diff` and `what_if`.
        """
        from ullage.api.explain import Explanation
        from ullage.estimate.training.log import write_log
        from ullage.explain.rules.registry import find_findings
        from ullage.explain.snapshot import explain_snapshot
        from ullage.report.views import ExplainView

        report = explain_snapshot(write_log(self.answer.estimate))
        return Explanation(ExplainView(self.answer.estimate.model, report, find_findings(report)))

    @property
    def html(self) -> str:
        """One self-contained page, as of a run: the map of addresses, the timeline, the findings,
        the report; the document is in it.
        """
        from ullage.report.page.estimate import render_estimate_page

        return render_estimate_page(self.answer, self.explanation.view)

    def text(self, width: int = 80) -> str:
        """The report, as the terminal shows it."""
        from ullage.answers.text import render
        from ullage.report.text.estimate import estimate_blocks

        return render(estimate_blocks(self.answer), width)


@takes(TrainingOptions)
def estimate_training(options: TrainingOptions) -> Estimate:
    """What training a model needs; no torch, some milliseconds, and with `time` some tenths of a
    second. Without a GPU: an H100's rules, and no verdict.

    Raises:
        SpecError: the model or GPU is not known, or a field is missing or contradicts another.
    """
    from ullage.gpus.catalog import find_entry, load_catalog
    from ullage.gpus.price import check_price

    model, largest = options.model, options.largest
    source = find_config(model) if isinstance(model, str) else Found(_config(model), "")
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
        from ullage.estimate.time.answer import add_time

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
    """What is neither left out nor off."""
    return {
        name: value for name, value in values.items() if value is not None and value is not False
    }


def _lora(options: TrainingOptions) -> Lora | None:
    """What is trained beside frozen weights; None: all parameters are trained."""
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
            "--lora-targets, --lora-dtype, --lora-dropout and --quantize say how adapters "
            "are trained; add --lora RANK"
        )
    return None


@dataclass(frozen=True, slots=True)
class WorkloadAnswer:
    """What a workload needs, from configurations alone.

    Attributes:
        estimate: all that was found.
    """

    estimate: WorkloadEstimate

    @property
    def fits(self) -> bool | None:
        """Of its verdict; None: it may fit, or there is none."""
        verdict = self.estimate.verdict
        return None if verdict is None else verdict.fits

    @property
    def document(self) -> dict[str, Any]:
        """The document, schema "ullage.estimate/2"."""
        return document_of(self.estimate)

    def text(self, width: int = 80) -> str:
        """The report, as the terminal shows it."""
        from ullage.answers.text import render
        from ullage.report.text.workloads import workload_blocks

        return render(workload_blocks(self.estimate), width)


def estimate_speech(
    model: str | Config, streams: int, *, at_once: int | None = None, gpu: str | None = None
) -> WorkloadAnswer:
    """What streams of speech need with a model like Whisper; no torch.

    Args:
        model: as for `estimate_training`.
        streams: at the same time, each with a window of 30 s and the longest text.
        at_once: windows that are encoded in one pass; None: those of all streams.
        gpu: of the catalogue; None: no verdict.

    Raises:
        SpecError: the model or the GPU is not known, or a number is not possible.
    """
    from ullage.estimate.workloads.speech import estimate_speech as estimate

    return WorkloadAnswer(estimate(_config(model), streams, at_once, gpu))


def estimate_diffusion(
    denoiser: str | Config,
    parts: str,
    *,
    images: int = 1,
    side: int = 512,
    precision: str = "fp16",
    gpu: str | None = None,
) -> WorkloadAnswer:
    """What a pipeline of diffusers needs: the most of its stages; no torch.

    Args:
        denoiser: a UNet or a DiT, found as by `estimate_training`.
        parts: "vae=MODEL", and perhaps "text=MODEL", "offload=model" or "offload=sequential",
            "guidance=off", "tiles=on".
        images: made at once.
        side: pixels of an image's side.
        precision: "fp16", "bf16" or "fp32".
        gpu: of the catalogue; None: no verdict.

    Raises:
        SpecError: a model or the GPU is not known, or a setting is not possible.
    """
    from ullage.estimate.workloads.diffusion import Sampler, parse_offload
    from ullage.estimate.workloads.diffusion import estimate_diffusion as estimate
    from ullage.estimate.workloads.option_values import Settings

    settings = Settings.parse("--diffusion", parts)
    vae, text = settings.text("vae", ""), settings.text("text", "")
    offload = parse_offload(settings.text("offload", "none"))
    is_guided, is_tiled = settings.switch("guidance", "on"), settings.switch("tiles", "off")
    settings.check()
    sampler = Sampler(
        _config(denoiser), _config(vae or settings.refuse_missing("vae")),
        _config(text) if text else None, images, side, precision, offload,
        is_guided=is_guided, is_tiled=is_tiled,
    )  # fmt: skip
    return WorkloadAnswer(estimate(sampler, gpu))


def estimate_index(
    index: str, *, model: str | Config | None = None, gpu: str | None = None
) -> WorkloadAnswer:
    """What an index of embeddings needs, shared out over machines and tiers; no torch.

    Args:
        index: such as "ivfpq:vectors=100M,width=768,codes=96,lists=65536,rerank=on,shards=4,
            host=64GiB,nvme=1TiB"; the kinds are flat, hnsw, ivf and ivfpq.
        model: what makes the embeddings, whose width is taken; None: the index says it.
        gpu: of the catalogue: the fastest tier; None: there is none.

    Raises:
        SpecError: a setting, the model or the GPU is not known or not possible.
    """
    from ullage.estimate.workloads.index import estimate_index as estimate
    from ullage.estimate.workloads.index import parse_index
    from ullage.estimate.workloads.passes import context_term, device_and_machine
    from ullage.models.architecture import read_model

    width = None if model is None else read_model(_config(model)).hidden
    device, machine = device_and_machine(gpu)
    parsed, tiers, shards = parse_index(
        index, width, None if device is None else device.total_bytes
    )
    context = None if device is None else context_term(device, machine)
    return WorkloadAnswer(estimate(parsed, tiers, shards, gpu=device, context=context))


def _config(model: str | ModelConfig) -> Config:
    if isinstance(model, str):
        return find_config(model).config
    if not isinstance(model, Config):
        raise SpecError(f"model={model!r} is not a model; expected a name, or a configuration")
    return model
