"""The answer of `ullage capacity`: what an engine needs, and how many users it holds.

    plan = ServingPlan(gpu=find_gpu("h100-80gb"), context=32768, users=20)
    answer = estimate_serving(read_config("path/to/model"), plan)
    answer.tokens, answer.concurrency, answer.verdict
    for term in answer.terms:               # they add up to the GPU's memory
        print(term.name, term.bytes, term.source)

The layout of the cache is exact, given its bytes; the bytes are an interval, because activations,
CUDA graphs and the driver's context are. See docs/results/serving.md.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ullage.facts.families.architecture import read_model
from ullage.facts.families.config import COUNTED, Config
from ullage.facts.families.kv_cache import PRECISIONS, request_bytes, token_bytes
from ullage.facts.families.layers import Attention, Cross, Index, Latent, Layer, Model, Recurrent
from ullage.ground.errors import SpecError
from ullage.ground.units import format_bytes
from ullage.players.eager.serving.adapters import DEFAULT_RANK, embedding_slot_bytes, slot_bytes
from ullage.players.eager.serving.counted import estimate_counted
from ullage.players.eager.serving.drafts import describe_draft, with_draft
from ullage.players.eager.serving.encoders import bound_context, is_encoder_only, judge_encoder
from ullage.players.eager.serving.engines import transformers, vllm
from ullage.players.eager.serving.engines.vllm_releases import RELEASES, find_release
from ullage.players.eager.serving.model_weights import FORMATS, find_format, weight_bytes
from ullage.players.eager.serving.serving_plan import KvGroup, ServingEstimate, ServingPlan
from ullage.players.eager.serving.vllm_memory import outside, prompt_bytes
from ullage.players.eager.serving.vllm_terms import divide, first_start, make_step
from ullage.players.eager.term import Term, Verdict, exact, left_of

if TYPE_CHECKING:
    from ullage.facts.gpus.gpu import Entry

__all__ = ["KvGroup", "ServingEstimate", "ServingPlan", "Verdict"]

_Pools = Callable[[int], vllm.Pool | transformers.Sectors | transformers.Requests]
"""The layout for a context length."""


def estimate_serving(config: Config, plan: ServingPlan) -> ServingEstimate:
    """Estimates the memory of serving a model, and how many users it holds.

    Counts: weights, the activations of a step, CUDA graphs, the driver's context and, of the rest,
    the KV cache as the engine lays it out.
    Ignores: other processes on the GPU; images and audio of a request; the sampler's memory for
    prompt_logprobs; pipeline and expert parallelism.
    Error: layout none (docs/results/serving.md); the bytes for the cache: those of the
    terms' intervals.
    Source: of each term, its `source`.

    Raises:
        SpecError: the model is not known, a field is missing, or the plan is not possible.
    """
    if plan.gpu is not None and plan.capacity_bytes is not None:
        plan = replace(plan, gpu=replace(plan.gpu, total_bytes=plan.capacity_bytes))
    if config.model_type == COUNTED:
        return estimate_counted(config, plan)
    model = read_model(config)
    model.check_tensor_parallel(plan.tensor_parallel)
    plan, bound = bound_context(model, plan)
    if plan.weights == "auto":
        plan = replace(plan, weights=find_format(config))
    if plan.lora_slots:
        rank = plan.lora_rank or DEFAULT_RANK
        slots = slot_bytes(model, rank, plan.lora_slots, plan.tensor_parallel)
        slots += embedding_slot_bytes(model, rank, plan.lora_slots)
        plan = replace(plan, lora_rank=rank, lora_bytes=slots)
    if plan.draft is not None:
        model, plan = with_draft(model, plan, plan.draft)
    if plan.gpu is None:
        estimate = _without_gpu(config, model, plan)
    else:
        engine = _vllm if plan.engine == "vllm" else _transformers
        estimate = engine(config, model, plan, plan.gpu)
    return replace(estimate, remarks=(bound, *estimate.remarks)) if bound else estimate


def _groups(model: Model, plan: ServingPlan) -> tuple[KvGroup, ...]:
    counts: dict[Layer, int] = {}
    for layer in model.layers:
        counts[layer] = counts.get(layer, 0) + 1
    ranks, kv = plan.tensor_parallel, plan.precision
    groups = []
    for layer, count in counts.items():
        needed = request_bytes(layer, plan.context, kv, ranks, _encoded(model, plan, plan.context))
        each = token_bytes(layer, kv, ranks)
        groups.append(KvGroup(_name(layer), count, count * each, count * needed))
    return tuple(groups)


def _encoded(model: Model, plan: ServingPlan, context: int) -> int | None:
    """Positions of the encoder's output: as asked; of an encoder for any length, the context's."""
    is_open = any(isinstance(layer, Cross) and layer.positions is None for layer in model.layers)
    return context if plan.encoded is None and is_open else plan.encoded


def _name(layer: Layer) -> str:
    if isinstance(layer, Attention):
        if layer.is_shared:
            return "an earlier layer's keys and values"
        if layer.window:
            return f"sliding window of {layer.window:,}"
        return f"chunks of {layer.chunk:,}" if layer.chunk else "full attention"
    if isinstance(layer, Index):
        return "keys of the indexer"
    if isinstance(layer, Recurrent):
        names = {"mamba": "Mamba", "mamba2": "Mamba 2", "delta": "gated delta net"}
        return names.get(layer.kind, "short convolution")
    if isinstance(layer, Latent):
        return "latent attention"
    return "cross attention" if isinstance(layer, Cross) else "encoder, keeps nothing"


def _weight_terms(model: Model, plan: ServingPlan) -> list[Term]:
    parts = weight_bytes(model, plan.weights, plan.tensor_parallel)
    total = sum(parts.values())
    what = ", ".join(f"{part.value} {format_bytes(size)}" for part, size in parts.items() if size)
    terms = [exact("weights", total, what, "counted from the configuration")]
    for part in model.uncounted:
        if part.likely is not None and part.most is not None:
            sizes = (part.likely, 0, part.most)
            likely, low, high = (FORMATS[plan.weights].plain_bytes * size for size in sizes)
            source = "assumed: layers of a transformer"
            terms.append(Term(part.name, likely, low, high, "by its sizes", source))
    extra = plan.draft_bytes + plan.lora_bytes
    if extra:
        slots = f"{plan.lora_slots} LoRA slots of rank {plan.lora_rank}"
        what = slots if plan.lora_slots else "as the plan says"
        what = describe_draft(plan.draft, plan.speculated) if plan.draft is not None else what
        terms.append(exact("adapters and drafts", extra, what, "the plan"))
    return terms


def _without_gpu(config: Config, model: Model, plan: ServingPlan) -> ServingEstimate:
    terms, remarks = tuple(_weight_terms(model, plan)), _remarks(model, plan)
    head = config.name, model.parameters, plan, None, terms, "no GPU was named", remarks
    size = plan.block_size or vllm.BLOCK_SIZE
    return ServingEstimate(*head, kv_groups=_groups(model, plan), block_size=size)


def _remarks(model: Model, plan: ServingPlan) -> tuple[str, ...]:
    ways = {True: "are not counted", False: "are bounded by its sizes, as layers of a transformer"}
    remarks = [f"the weights of {part.name} {ways[part.most is None]}" for part in model.uncounted]
    if model.context is not None and plan.context > model.context:
        remarks.append(
            f"the model was made for {model.context:,} tokens; the plan asks for {plan.context:,}"
        )
    remarks += () if plan.gpu is None else plan.gpu.assumptions
    if plan.engine == "vllm":
        sentences = (vllm.describe_release(plan.engine_version), first_start(model, plan))
        remarks += [sentence for sentence in sentences if sentence]
    return tuple(remarks)


def _vllm(config: Config, model: Model, plan: ServingPlan, gpu: Entry) -> ServingEstimate:
    if model.model_type in vllm.REFUSED:
        raise SpecError(
            f"vLLM {vllm.name_version()} does not serve {model.model_type}; "
            f"plan it with engine transformers"
        )
    step = make_step(plan, gpu, find_release(plan.engine_version))
    pools = partial(_blocks, model, layout_settings(model, plan, step.tokens))
    weights = _weight_terms(model, plan)
    budget = divide(model, plan, gpu, weights, step)
    refusal, terms = "", [*budget.inside, *budget.after]
    if plan.kv_bytes is not None:
        # With the bytes that a start has printed, the cache is exact.
        cache = exact("KV cache", plan.kv_bytes, "as the plan says", "--kv-cache-memory-bytes")
        terms += [cache, left_of("left free", gpu.total_bytes, [*terms, cache], "the rest")]
    elif is_encoder_only(model):
        cache, refusal = exact("KV cache", 0, "there is none"), budget.refusal
        terms.append(left_of("left free", gpu.total_bytes, terms, "there is no cache"))
    else:
        cache, refusal = budget.cache, budget.refusal
        for release in RELEASES if plan.engine_version is None else ():
            if not release.is_old_engine:
                other = divide(model, plan, gpu, weights, make_step(plan, gpu, release)).cache
                low, high = (min(cache.low_bytes, other.low_bytes),
                             max(cache.high_bytes, other.high_bytes))  # fmt: skip
                cache = replace(cache, low_bytes=low, high_bytes=high)
        terms += [budget.left, cache]
    return _finish(
        config, model, plan, terms=terms, pools=pools, kv_bytes=cache.ends, refusal=refusal
    )


def layout_settings(model: Model, plan: ServingPlan, batched: int) -> vllm.Settings:
    """The settings that vLLM's layout of a plan depends on, with this many tokens in a step."""
    has_cross = any(isinstance(layer, Cross) for layer in model.layers)
    return vllm.Settings(
        max_model_len=plan.context,
        max_batched_tokens=batched,
        kv=plan.precision,
        block_size=plan.block_size or vllm.BLOCK_SIZE,
        tensor_parallel=plan.tensor_parallel,
        has_prefix_caching=plan.has_prefix_caching and not has_cross,
        batches_in_flight=2 if plan.is_async else 1,
        speculated=plan.speculated,
    )


def _blocks(model: Model, settings: vllm.Settings, context: int) -> vllm.Pool:
    return vllm.lay_out(model.layers, replace(settings, max_model_len=context))


def _requests(model: Model, plan: ServingPlan, context: int) -> transformers.Requests:
    """A request's cache, and the activations of its prompt, which the batch is read with."""
    encoded = _encoded(model, plan, context)
    size = transformers.generated_bytes(model, 1, context, encoded=encoded, is_prompt=True)
    return transformers.Requests(context, size + prompt_bytes(model, context))


def _sectors(sectors: transformers.Sectors, context: int) -> transformers.Sectors:
    return replace(sectors, context=context)


def _generate(config: Config, model: Model, plan: ServingPlan, gpu: Entry) -> ServingEstimate:
    """transformers' generate, with as large a batch as fits: what it cannot batch continuously."""
    for name in ("tensor_parallel", "utilization", "max_batched_tokens"):
        value = getattr(plan, name)
        if value not in (None, 1):
            raise SpecError(
                f"{name}={value}: {model.model_type} is served by generate, which is planned for "
                f"one GPU alone, for all that is left of it and for whole prompts"
            )
    terms = [*_weight_terms(model, plan), outside(gpu, 1)]
    cache = left_of("KV cache", gpu.total_bytes, terms, "caches, and the prompts that are read")
    terms.append(cache)
    pools = partial(_requests, model, plan)
    return _finish(config, model, plan, terms=terms, pools=pools, kv_bytes=cache.ends)


def _transformers(config: Config, model: Model, plan: ServingPlan, gpu: Entry) -> ServingEstimate:
    if PRECISIONS[plan.precision].bits != 16:
        raise SpecError(f"kv={plan.kv!r}: transformers' caches are planned in 16 bits; take auto")
    if not transformers.is_paged(model):
        return _generate(config, model, plan, gpu)
    terms = _weight_terms(model, plan)
    terms.append(outside(gpu, plan.tensor_parallel))
    share = plan.utilization or transformers.UTILIZATION
    batched = plan.max_batched_tokens or transformers.BATCHED_TOKENS
    sectors = transformers.lay_out(model, plan.context, plan.tensor_parallel, batched)
    rest = left_of("rest", gpu.total_bytes, terms, "the rest")
    kv_bytes = [sectors.pool_bytes(int(share * free)) for free in rest.ends]
    working = [int(share * free) - pool for free, pool in zip(rest.ends, kv_bytes, strict=True)]
    terms.append(Term("working memory", working[1], min(working), max(working),
                      f"inputs, activations and masks of {batched:,} tokens a step",
                      "transformers 5.23, continuous_batching/cache.py"))  # fmt: skip
    frees = rest.low_bytes, rest.bytes, rest.high_bytes
    left = [free - int(share * max(0, free)) for free in frees]
    terms.append(Term("left free", left[1], min(left), max(left), f"{1 - share:.0%} of the rest",
                      f"max_memory_percent={share:g}"))  # fmt: skip
    terms.append(Term("KV cache", kv_bytes[1], kv_bytes[0], kv_bytes[2], "the rest",
                      "what the others leave"))  # fmt: skip
    pools = partial(_sectors, sectors)
    return _finish(config, model, plan, terms=terms, pools=pools, kv_bytes=tuple(kv_bytes))


def _finish(
    config: Config, model: Model, plan: ServingPlan, *, terms: list[Term], pools: _Pools,
    kv_bytes: tuple[int, ...], refusal: str = "",
) -> ServingEstimate:  # fmt: skip
    pool = pools(plan.context)
    users = tuple(pool.users(size) for size in kv_bytes)
    if is_encoder_only(model) and plan.engine == "vllm":
        verdict, reason = judge_encoder(plan, users[0], terms)
    else:
        verdict, reason = _judge(plan, users, terms)
    if refusal and verdict is not Verdict.DOES_NOT_FIT:
        verdict = Verdict.DOES_NOT_FIT if " cannot " in refusal else Verdict.MAY_FIT
        reason = refusal
    unknown = [part.name for part in model.uncounted if part.most is None]
    if unknown and verdict is Verdict.FITS:
        verdict = Verdict.MAY_FIT
        reason += f", without {', '.join(unknown)}, whose sizes it does not state"
    most = model.context or plan.context
    return ServingEstimate(
        model=config.name,
        num_parameters=model.parameters,
        plan=plan,
        capacity_bytes=plan.gpu.total_bytes if plan.gpu else None,
        terms=tuple(terms),
        kv_groups=_groups(model, plan),
        kv_bytes=kv_bytes,
        num_blocks=tuple(pool.num_blocks(size) for size in kv_bytes),
        block_size=pool.block_size,
        block_bytes=pool.block_bytes,
        tokens=tuple(pool.tokens(size) for size in kv_bytes),
        concurrency=tuple(pool.concurrency(size) for size in kv_bytes),
        users=users,
        longest=tuple(find_longest(pools, size, max(most, plan.context)) for size in kv_bytes),
        verdict=verdict,
        reason=reason,
        remarks=_remarks(model, plan),
    )


def _judge(plan: ServingPlan, users: tuple[int, ...], terms: list[Term]) -> tuple[Verdict, str]:
    low, likely, high = users
    num_users = plan.users or 1
    requests = f"{num_users:,} request{'s' if num_users > 1 else ''} of {plan.context:,} tokens"
    if terms[-1].high_bytes <= 0:
        return Verdict.DOES_NOT_FIT, "the other terms take more than the GPU has: nothing is left"
    if low >= num_users and plan.kv_bytes is not None and terms[-1].low_bytes < 0:
        return Verdict.MAY_FIT, "the other terms may take more than the cache leaves of the GPU"
    if low >= num_users:
        return Verdict.FITS, f"{requests}: at least {low:,} fit at once"
    if high >= num_users:
        return Verdict.MAY_FIT, f"{requests}: {likely:,} are likely to fit, {low:,} to {high:,} may"
    return Verdict.DOES_NOT_FIT, f"{requests}: at most {high:,} fit at once"


def find_longest(pools: _Pools, kv_bytes: int, most: int) -> int:
    """The longest context of which one request fits, up to `most`; 0: none does.

    Args:
        pools: the engine's layout for a context.
        kv_bytes: for the cache.
        most: where to stop looking.
    """
    lengths = range(1, most + 1)
    return bisect_left(lengths, 1, key=lambda length: pools(length).users(kv_bytes) < 1)
