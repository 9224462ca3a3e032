"""The memory and the users of a model that is served, from configurations alone:
`ullage capacity` and `ullage.capacity`.

    found = ullage.capacity("llama-3.1-8b", gpu="l40s", context=32768, users=4)
    found.fits, found.estimate.concurrency
    ullage.capacity("llama-3.1-8b", gpu="l40s", traffic="azure-conv:rate=2,duration=10m")
    ullage.capacity("whisper-large-v3", users=32, max_seqs=8, gpu="l4")
    ullage.capacity("sd15-unet", ("sd-vae", "clip-vit-l14"), image=768, gpu="rtx-4090")
    ullage.capacity("hnsw:vectors=10M,width=768", gpu="l4")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, TypeAlias

from ullage.answers.verb_answer import PageAnswer
from ullage.facts.families.config import Config
from ullage.facts.families.find import Found, find_config
from ullage.ground.errors import SpecError
from ullage.ground.protocol.option import flag_of, options_of, takes
from ullage.ground.protocol.plain import As, Mark, document_of, figure
from ullage.ground.units import parse_bytes
from ullage.players.eager.term import ESTIMATE_SCHEMA
from ullage.verbs.capacity.options import TRAFFIC, CapacityOptions
from ullage.verbs.serve.function import GPU

if TYPE_CHECKING:
    from ullage.answers.block_kinds import Blocks
    from ullage.operate.serve.forecast.forecast import Forecast
    from ullage.operate.serve.slo import Slo
    from ullage.operate.serve.tiers import Tiers
    from ullage.operate.serve.traffic import Traffic
    from ullage.players.eager.serving.gpu_ranking import ServingRow
    from ullage.players.eager.serving.knobs import ServingKnob
    from ullage.players.eager.serving.serving_plan import ServingEstimate, ServingPlan
    from ullage.players.eager.term import Verdict
    from ullage.players.eager.time.serving import ServingTime
    from ullage.players.eager.workloads.answer import WorkloadEstimate


@dataclass(frozen=True, slots=True)
class _Capacity(PageAnswer):
    """The common part of the answers of all kinds."""

    estimate: Any

    @property
    def fits(self) -> bool | None:
        """True if its verdict is that it fits; None: it may fit, or there is no verdict."""
        verdict: Verdict | None = self.estimate.verdict
        return None if verdict is None else verdict.fits

    @property
    def exit_code(self) -> int:
        """The exit code of the command line: 1 where not even the lower bound fits."""
        return int(self.fits is False)

    @property
    def subject(self) -> str:
        """The title of the page: the model or traffic."""
        return str(self.estimate.model)


@dataclass(frozen=True, slots=True)
class ServerCapacity(_Capacity):
    """The memory that serving a text model takes, and the number of users that it holds.

    Attributes:
        estimate: all that was found.
        source: where the model's configuration is from; "" where it is the user's own file.
        gpus: the catalogue, those on which the users fit first; empty where it was not asked.
        knobs: what would leave more room, the best first; empty where it was not asked.
        time: of a prompt and of a token; None where it was not asked.
    """

    SCHEMA: ClassVar[str] = ESTIMATE_SCHEMA

    estimate: Annotated[ServingEstimate, Mark.FLAT]
    source: Annotated[str, Mark.NO_KEY] = ""
    gpus: Annotated[tuple[ServingRow, ...], As("which_gpu")] = ()
    knobs: tuple[ServingKnob, ...] = ()
    time: ServingTime | None = None

    @figure
    def kind(self) -> str:
        """Training and other work have documents of the same schema."""
        return "serving"

    @figure
    def model(self) -> Mapping[str, Any]:
        """The model and its size."""
        estimate = self.estimate
        return {
            "name": estimate.model,
            "source": self.source,
            "num_parameters": estimate.num_parameters,
        }

    def blocks(self, *, full: bool = False) -> Blocks:
        """The blocks of its report."""
        from ullage.verbs.capacity.serving_text import serving_blocks

        return serving_blocks(self.estimate, self.source, self.gpus, self.knobs, self.time)


@dataclass(frozen=True, slots=True)
class WorkloadCapacity(_Capacity):
    """The memory that speech, pictures or an index of embeddings takes.

    Attributes:
        estimate: all that was found.
    """

    estimate: WorkloadEstimate

    @property
    def subject(self) -> str:
        """The title of the page: the model or traffic."""
        return self.estimate.subject

    @property
    def document(self) -> dict[str, Any]:
        """The document, schema "ullage.estimate/2"."""
        return document_of(self.estimate)

    def blocks(self, *, full: bool = False) -> Blocks:
        """The blocks of its report."""
        from ullage.verbs.capacity.workloads_text import workload_blocks

        return workload_blocks(self.estimate)


@dataclass(frozen=True, slots=True)
class TrafficForecast(_Capacity):
    """The latencies and preemptions of the requests of some traffic, without the engine.

    Attributes:
        estimate: the forecast.
        traffic: the requests.
        slo: the objective, if there is one.
        tiers: how large a cache of prefixes must be; None: no prompts are alike.
    """

    SCHEMA: ClassVar[str] = "ullage.forecast/1"

    estimate: Annotated[Forecast, Mark.FLAT]
    traffic: Traffic
    slo: Slo | None
    tiers: Tiers | None

    @property
    def fits(self) -> bool:
        """True if every request can be answered."""
        return not self.estimate.num_stuck

    @property
    def subject(self) -> str:
        """The title of the page: the model or traffic."""
        return self.traffic.source

    @figure
    def goodput_frac(self) -> float | None:
        """The share of all requests that meet the objective; None: there is none."""
        return None if self.slo is None else self.estimate.goodput(self.slo, self.traffic)

    def blocks(self, *, full: bool = False) -> Blocks:
        """The blocks of its report."""
        from ullage.verbs.serve.forecast_text import forecast_blocks

        return forecast_blocks((self.estimate, self.traffic, self.slo, self.tiers))


Capacity: TypeAlias = ServerCapacity | WorkloadCapacity | TrafficForecast


@takes(CapacityOptions)
def capacity(options: CapacityOptions) -> Capacity:
    """Estimates the memory and users of a model that is served; no torch, some milliseconds, of
    traffic some seconds.

    Of a text model: what serving it needs, and how many users it holds; without a GPU only what a
    request keeps. With `time`: the seconds of a prompt of `context` tokens, and of one new token
    for each of `users` requests (default: one) of that length. With `traffic`: its preemptions, the
    use of the cache and latencies. Of a model like Whisper: `users` streams, each with a window of
    30 s and the longest text, of which `max_seqs` windows (default: all) are encoded at once; name
    an engine to have it served as a text model. Of a denoiser and its parts: the most that a stage
    of the pipeline needs for `users` images (default: one) at once. Of an index: its bytes, shared
    out over machines and tiers.

    Raises:
        SpecError: the model or GPU is not known, the plan is not possible, or an option has no
            effect on what is served.
    """
    model = options.model
    if isinstance(model, str) and _is_index(model):
        return _serve(options, "an index", Found(Config(model, {}), ""))
    if not isinstance(model, str | Config):
        raise SpecError(f"model={model!r} is not a model; expected a name, or a configuration")
    source = find_config(model) if isinstance(model, str) else Found(model, "")
    if options.traffic is not None:
        return _serve(options, "traffic", source)
    if source.config.model_type == "whisper" and options.engine is None:
        return _serve(options, "speech", source)
    from ullage.players.eager.workloads.diffusion import DENOISERS

    is_denoiser = source.config.model_type in DENOISERS
    return _serve(options, "pictures" if is_denoiser or options.parts else "a server", source)


def _serve(options: CapacityOptions, kind: str, source: Found) -> Capacity:
    """The answer of a kind; an option that it does not read would be ignored, and is refused."""
    answer, read = _KINDS[kind]
    for name, (_, default, option) in options_of(CapacityOptions).items():
        if name not in read and getattr(options, name) not in (None, default):
            is_of_traffic = option is not None and option.section == TRAFFIC.title
            remedy = "give --traffic, or leave it out" if is_of_traffic else "leave it out"
            raise SpecError(f"{flag_of(name, option)} has no effect on {kind}; {remedy}")
    return answer(options, source)


def _is_index(text: str) -> bool:
    from ullage.players.eager.workloads.index import KINDS

    return text.partition(":")[0] in KINDS


def _estimate_server(options: CapacityOptions, source: Found) -> ServerCapacity:
    from ullage.facts.gpus.catalog import load_catalog
    from ullage.players.eager.serving.gpu_ranking import rank_for_serving
    from ullage.players.eager.serving.knobs import find_serving_knobs
    from ullage.players.eager.serving.serving import estimate_serving

    config, origin = source
    plan = _make_plan(options)
    ranked = rank_for_serving(config, plan, load_catalog()) if options.which_gpu else ()
    turned = find_serving_knobs(config, plan) if options.knobs else ()
    times = None
    if options.time or options.price is not None or options.interconnect is not None:
        from ullage.clock.interconnect import parse_interconnect
        from ullage.facts.gpus.price import check_price
        from ullage.players.eager.time.serving import time_serving

        links = None if options.interconnect is None else parse_interconnect(options.interconnect)
        times = time_serving(config, plan, links, check_price(options.price))
    return ServerCapacity(estimate_serving(config, plan), origin, ranked, turned, times)


def _forecast_traffic(options: CapacityOptions, source: Found) -> TrafficForecast:
    from ullage.facts.families.architecture import read_model
    from ullage.facts.families.kv_cache import token_bytes
    from ullage.operate.serve.forecast.forecast import forecast_traffic
    from ullage.operate.serve.slo import parse_slo
    from ullage.operate.serve.tiers import size_tiers
    from ullage.operate.serve.traffic import load_traffic

    requests, model = load_traffic(options.traffic or ""), read_model(source.config)
    if not len(requests):
        raise SpecError(f"traffic {options.traffic!r} has no requests")
    longest = int((requests.prompt_tokens + requests.output_tokens).max())
    context = options.context or model.context or longest
    plan = _make_plan(replace(options, context=context, gpu=options.gpu or GPU))
    forecast = forecast_traffic(source.config, plan, requests, plan.kv_bytes)
    each = sum(token_bytes(layer, plan.precision) for layer in model.layers)
    tiers = size_tiers(requests, each) if len(requests.block_hashes) else None
    objective = None if options.slo is None else parse_slo(options.slo)
    return TrafficForecast(forecast, requests, objective, tiers)


def _estimate_speech(options: CapacityOptions, source: Found) -> WorkloadCapacity:
    from ullage.players.eager.workloads.speech import estimate_speech

    if options.users is None:
        raise SpecError("how many streams of speech? give users, for example --users 32")
    return WorkloadCapacity(
        estimate_speech(source.config, options.users, options.max_seqs, options.gpu)
    )


def _estimate_pictures(options: CapacityOptions, source: Found) -> WorkloadCapacity:
    from ullage.players.eager.workloads.diffusion import Offload, Sampler, estimate_diffusion

    parts = [find_config(part).config for part in options.parts]
    vaes = [part for part in parts if part.model_type == "AutoencoderKL"]
    texts = [part for part in parts if part.model_type != "AutoencoderKL"]
    if len(vaes) != 1 or len(texts) > 1:
        raise SpecError(
            f"parts: found {len(vaes)} VAEs and {len(texts)} others; expected the pipeline's VAE, "
            "and its text encoder if it has one, for example: sd15-unet sd-vae clip-vit-l14"
        )
    sampler = Sampler(
        source.config, vaes[0], texts[0] if texts else None, options.users or 1,
        options.image or 512, options.weights or "fp16", Offload(options.offload or "none"),
        is_guided=options.guidance, is_tiled=options.tiles,
    )  # fmt: skip
    return WorkloadCapacity(estimate_diffusion(sampler, options.gpu))


def _estimate_index(options: CapacityOptions, source: Found) -> WorkloadCapacity:
    from ullage.players.eager.workloads.index import estimate_index, parse_index
    from ullage.players.eager.workloads.passes import context_term, device_and_machine

    device, machine = device_and_machine(options.gpu)
    total_bytes = None if device is None else device.total_bytes
    parsed, tiers, shards = parse_index(source.config.name, total_bytes)
    context = None if device is None else context_term(device, machine)
    return WorkloadCapacity(estimate_index(parsed, tiers, shards, gpu=device, context=context))


_OPTIONS: Final = frozenset(options_of(CapacityOptions))
_PICTURES: Final = frozenset({"parts", "image", "offload", "guidance", "tiles"})
_TRAFFIC: Final = frozenset({"traffic", "slo"})
_SERVER: Final = _OPTIONS - _PICTURES - _TRAFFIC
_ASKED: Final = frozenset({"which_gpu", "knobs", "users", "time", "price", "interconnect"})
# What is served: what answers, and the options that it reads.
_KINDS: Final[Mapping[str, tuple[Callable[[CapacityOptions, Found], Capacity], frozenset[str]]]] = {
    "a server": (_estimate_server, _SERVER),
    "traffic": (_forecast_traffic, _SERVER - _ASKED | _TRAFFIC),
    "speech": (_estimate_speech, frozenset({"model", "gpu", "users", "max_seqs"})),
    "pictures": (_estimate_pictures, _PICTURES | {"model", "gpu", "users", "weights"}),
    "an index": (_estimate_index, frozenset({"model", "gpu"})),
}


def _make_plan(options: CapacityOptions) -> ServingPlan:
    from ullage.facts.gpus.catalog import find_entry
    from ullage.players.eager.serving.serving_plan import ServingPlan

    names = {field.name for field in fields(ServingPlan)} & _OPTIONS
    values = {name: getattr(options, name) for name in names} | {
        "gpu": None if options.gpu is None else find_entry(options.gpu),
        "tensor_parallel": options.tensor,
        "max_batched_tokens": options.batched_tokens,
        "capacity_bytes": None if options.memory is None else parse_bytes(options.memory),
        "kv_bytes": None if options.kv_bytes is None else parse_bytes(options.kv_bytes),
        "has_graphs": False if options.eager else None,
        "is_cached": True if options.cached else None,
    }
    if options.lora_slots is not None:
        values |= _read_slots(str(options.lora_slots), options.lora_rank)
    if isinstance(options.draft, str):
        values |= _read_draft(options.draft, options.speculated)
    return ServingPlan(**{name: value for name, value in values.items() if value is not None})


def _read_slots(text: str, given_rank: int | None) -> dict[str, int | None]:
    """The fields of "SLOTS" or "SLOTS:RANK"."""
    from ullage.players.eager.workloads.option_values import parse_count, split_count

    word, rank = split_count("--lora-slots", text)
    if rank is not None and given_rank is not None:
        raise SpecError(f"lora_slots={text} has a rank; leave out lora_rank")
    return {"lora_slots": parse_count("--lora-slots", word), "lora_rank": rank or given_rank}


def _read_draft(text: str, speculated: int | None) -> dict[str, Any]:
    """The fields of "MODEL" or "MODEL:TOKENS": the model's configuration, and the tokens."""
    from ullage.players.eager.workloads.option_values import split_count

    name, tokens = split_count("draft", text)
    if tokens is not None and speculated is not None:
        raise SpecError(f"draft: {text!r} says how many tokens; leave out speculated={speculated}")
    return {"draft": find_config(name).config, "speculated": tokens or speculated or 1}
