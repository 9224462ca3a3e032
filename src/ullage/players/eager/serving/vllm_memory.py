"""GPU memory of vLLM besides weights and cache: intervals, each with its cause.

vLLM runs one step of max_num_batched_tokens and the sampler, and gives the cache what is left of
gpu_memory_utilization. So these terms are that step: they follow from the release's source
(engines/vllm_releases.py) and the model's sizes. Compared with starts of real servers and with
vLLM on the phantom in docs/results/serving.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Final

from ullage.facts.families.layers import Attention, Encoder, Latent, Model, Part, Recurrent
from ullage.facts.gpus.gpu import Gpu
from ullage.facts.gpus.nccl import find_nccl
from ullage.ground.units import GIB, KIB, MIB
from ullage.players.eager.serving.engines.vllm_releases import (
    FILTERED,
    PLAIN,
    RELEASES,
    SORTED,
    Release,
    Runner,
)
from ullage.players.eager.serving.model_weights import VOCAB_MULTIPLE
from ullage.players.eager.term import Term

if TYPE_CHECKING:
    from ullage.facts.gpus.gpu import Entry

_ELEMENT: Final = 2
_COPY: Final = 4  # bytes of one more copy of a logit, which a sampler may make


@dataclass(frozen=True, slots=True)
class Step:
    """vLLM's trial step.

    Attributes:
        tokens: max_num_batched_tokens.
        requests: max_num_seqs.
        tensor_parallel: ranks.
        release: what the version of vLLM counts.
        is_compiled: the model is compiled (not enforce_eager).
        is_cached: a compile cache of an earlier start is there; None: it is not known.
    """

    tokens: int
    requests: int
    tensor_parallel: int = 1
    release: Release = RELEASES[-1]
    is_compiled: bool = True
    is_cached: bool | None = None

    @property
    def rows(self) -> int:
        """Logits' rows in the sampler."""
        return min(self.requests, self.tokens)


_WHOLE_PROMPT: Final = 32768  # V0 reads longer prompts in pieces


def batch_defaults(
    gpu: Entry, release: Release = RELEASES[-1], context: int | None = None
) -> tuple[int, int]:
    """max_num_batched_tokens and max_num_seqs of `vllm serve` where the user says nothing.

    Counts: tokens and requests of a step. Ignores: other usage contexts, such as its Python API.
    Error: none for the versions named.
    Source: vLLM 0.6 to 0.33, engine/arg_utils.py, get_batch_defaults; V0: config.py, where a step
    holds the longest prompt (context).
    """
    if release.is_old_engine:
        length = context or 0
        return (length if 2048 < length <= _WHOLE_PROMPT else 2048), 256
    if release.has_large_batches and gpu.total_bytes >= 160 * GIB:
        return 16384, 1024
    if gpu.total_bytes >= 70 * GIB and "a100" not in gpu.name.lower():
        return 8192, 1024
    return 2048, 256


def _layer_bytes(model: Model, step: Step) -> tuple[int, int]:
    """The widest moment of a layer, at least and at most."""
    # At least: the widest product, what is made of it, the residual, the layer's input and the
    # step's: what vLLM 0.28 takes on the phantom for Llama 3.1 8B. At most one vector more of each
    # token: what a model of several parts reads in place of the tokens; and one more over several
    # ranks, whose sums are not made in place (cuda_communicator.py, all_reduce).
    ranks = step.tensor_parallel
    widest = model.widest // ranks
    low = widest + widest // 2 + 3 * model.hidden
    more = model.hidden * min(2, ranks)
    widths = [
        weight.into if weight.out == model.hidden else weight.out
        for weight in model.weights
        if weight.part is Part.EXPERTS and weight.is_linear
    ]
    if widths:
        # fused_moe.py of vLLM 0.10.2 has room for the products of the chosen experts, which the
        # second takes over, and for what is made of the first; 0.19 to 0.33 (workspace_shapes of
        # TritonExperts and DeepGemmExperts) have as much as a token in either. Between: either.
        inner = max(widths) // ranks
        products = max(2 * inner, model.hidden)
        spare = max(inner, model.hidden) - inner
        low += model.top_experts * (products + inner + spare * step.release.has_workspaces)
        if step.release.has_full_graphs and not step.release.has_workspaces:
            more += model.top_experts * spare
    if any(weight.part is Part.VISION for weight in model.weights):
        low += model.hidden  # the encoded images, as many as a step has tokens
    return step.tokens * _ELEMENT * low, step.tokens * _ELEMENT * (low + more)


def prompt_bytes(model: Model, tokens: int) -> int:
    """The widest moment of reading a prompt, and its last token's logits, in generate.

    Counts: a layer's vectors of each token; one row of logits with its copies.
    Ignores: attention's workspace. Error: not compared with a GPU here.
    Source: that of activations.
    """
    return max(_layer_bytes(model, Step(tokens, 1))[0], model.vocab * SORTED)


def _sampler_bytes(model: Model, step: Step, runner: Runner, each: int) -> int:
    """The sampler's peak: bytes for each logit of max_num_seqs rows, and what profile_run holds."""
    if all(isinstance(layer, Encoder) for layer in model.layers):
        return 0
    # profile_run's hidden states of all tokens and those of the rows (sample_hidden_states) live
    # until the sampler has run; the first runner makes random ones of the rows beside them
    # (_dummy_sampler_run, rand_like).
    copies = 2 if runner is Runner.FIRST else 1
    hidden = model.hidden * (step.tokens + copies * step.rows)
    return step.rows * model.vocab * each + _ELEMENT * hidden


def _fused_bytes(model: Model, step: Step) -> int:
    """The table of embeddings that a first start fills with random numbers, and the vectors."""
    # Inductor times fused kernels on inputs that it makes itself (benchmark_combo_kernel); the
    # first piece of the model reads the whole table.
    if not (step.is_compiled and step.release.benchmarks_fusions):
        return 0
    rows = ceil(model.vocab / VOCAB_MULTIPLE) * VOCAB_MULTIPLE // step.tensor_parallel
    return _ELEMENT * model.hidden * (rows + 2 * step.tokens)


def _buffer_bytes(model: Model, step: Step, runner: Runner, gpu: Entry) -> tuple[int, str]:
    """Buffers that stay: counts of each request's tokens (V2), or the filter's workspace (V1)."""
    release = step.release
    if runner is Runner.SECOND and release.is_all_counted:
        return step.requests * model.vocab * 4 + step.requests * model.vocab // 8, "token counts"
    if runner is Runner.FIRST and release.logit_bytes == FILTERED:
        return min(gpu.num_multiprocessors, step.rows) * model.vocab * 4, "the filter's workspace"
    return 0, ""


def activations(model: Model, step: Step, gpu: Entry) -> Term:
    """The peak of profile_run: a step of max_num_batched_tokens, and then the sampler.

    Counts: the widest moment of a layer (residual, input, the widest product and what is made of
    it) with the experts' inputs and products; the sampler's logits and copies, with the hidden
    states of all tokens; the table of embeddings where a first start times kernels on it; the most
    of these, and the buffers that the runner keeps.
    Ignores: attention's workspace; encoders of images and audio.
    Error: docs/results/serving.md. Without is_cached the interval holds both kinds of start,
    and the likely one is the first.
    Source: vLLM's release (engines/vllm_releases.py), and torch 2.9, _inductor/scheduler.py.
    """
    runner = step.release.runner_of(model)
    low, high = _layer_bytes(model, step)
    layer = low
    if step.release.is_reserved_counted:  # segments that fit no later request: up to a quarter
        layer, high = low + low // 8, high + high // 4
    each = PLAIN if runner is Runner.SECOND else step.release.logit_bytes
    sampler = _sampler_bytes(model, step, runner, each)
    fused = _fused_bytes(model, step)
    buffers, what_buffers = _buffer_bytes(model, step, runner, gpu)
    first, later = max(layer, sampler, fused), max(layer, sampler)
    filtered = sampler
    if runner is Runner.FIRST and step.release.has_optional_filter:
        filtered = _sampler_bytes(model, step, runner, FILTERED)
    copied = sampler + step.rows * model.vocab * _COPY if sampler else 0
    most = max(high, copied, 0 if step.is_cached else fused)
    likely = later if step.is_cached else first
    lowest = max(low, filtered, fused if step.is_cached is False else 0)
    causes = {
        layer: f"a step of {step.tokens:,} tokens",
        sampler: f"logits of {step.rows:,} requests",
        fused: "kernels timed on the embeddings at a first start",
    }
    what = causes[likely] + (f", {what_buffers}" if what_buffers else "")
    source = f"vLLM {step.release.name}, profile_run"
    ends = likely + buffers, lowest + buffers, max(most, likely) + buffers
    return Term("activations", *ends, what, source)


# A piece between two attentions has about so many kernels: the output's product, two norms, the
# MLP's two products and its activation, q, k and v, and the positions; an expert layer twice that.
_PIECE_NODES: Final = 8
_EXPERT_NODES: Final = 16
# What a node of a piece's graph takes: four starts print 27 to 42 KiB; a step's whole graph takes
# 10 kB a node.
_PIECE_KIB: Final = (24, 36, 48)
_WHOLE_BYTES: Final = (4_000, 10_000, 20_000)


def _graph_sizes(step: Step) -> tuple[int, int]:
    """Sizes of batches that graphs are captured for: of pieces, and of whole decoding steps."""
    most = min(512, 2 * step.requests)
    sizes = [size for size in (1, 2, 4) if size <= most]
    sizes += range(8, min(most + 1, 256), 8)
    sizes += range(256, most + 1, step.release.graph_step)
    whole = sum(size <= step.requests for size in sizes)
    return len(sizes), whole


def graphs(model: Model, step: Step) -> Term:
    """CUDA graphs: one for each batch size, decoding whole and prompts in pieces.

    Counts: kernels of a piece and of a step, and what a kernel takes in a captured graph.
    Ignores: the private pool's tensors, which the largest size holds and the others share.
    Error: the bytes of a node are those of four published starts (docs/results/serving.md),
    so they are not compared with those.
    Source: vLLM 0.6 to 0.33, config/vllm.py (_set_cudagraph_sizes).
    """
    pieces, whole = _graph_sizes(step)
    is_old = step.release.is_old_engine
    layers = sum(isinstance(layer, Attention | Latent | Recurrent) for layer in model.layers)
    nodes = _EXPERT_NODES if model.top_experts else _PIECE_NODES
    in_pieces = 0 if is_old else pieces * (layers + 1) * nodes
    in_steps = whole * layers * (nodes + 2) if is_old or step.release.has_full_graphs else 0
    low, likely, high = (
        in_pieces * each * KIB + in_steps * every
        for each, every in zip(_PIECE_KIB, _WHOLE_BYTES, strict=True)
    )
    what = f"{whole if is_old else pieces} batch sizes of {layers} layers"
    return Term("CUDA graphs", likely, low, high, what, "kernels counted")


# Growth of what lies outside PyTorch's allocator during the trial step: kernels that are loaded at
# their first use. Starts of one GPU print 0.06 and 0.07 GiB, and vLLM 0.28 holds 0.1 GiB more on a
# GPU than on the phantom, which has none; of eight GPUs with NCCL 0.21.
LOADED_KERNELS: Final = (48 * MIB, 80 * MIB, 256 * MIB)
BETWEEN_GPUS: Final = (0, 64 * MIB, 256 * MIB)
"""Buffers of vLLM's own reductions, over PCIe."""
_CUSTOM_REDUCE: Final = 16 * MIB
# The most MiB of a tensor that FlashInfer sums and normalises at once, by capability and ranks.
_FUSED_MIB: Final = {
    (9, 0): {2: 64, 4: 2, 8: 1}, (10, 0): {2: 64, 4: 32, 8: 1}, (10, 3): {2: 64, 4: 64, 8: 4},
}  # fmt: skip


def fused_reductions(gpu: Entry, step: Step, hidden: int) -> tuple[int, int, int]:
    """The workspace of sums over ranks that are fused with norms: low, likely, high.

    Counts: FlashInfer's for T tokens, which is made when the model is compiled, within the trial
    step: trtllm has ranks x T x hidden elements once, and three times more for its flags in the
    data (Lamport); mnnvl, which 0.32 tries first, three buffers of two stages of T x hidden.
    Ignores: a draft that is wider than the model.
    Error: not compared with a GPU. Where a release may not fuse, or FlashInfer may be missing: 0.
    Source: vLLM 0.19 to 0.33, compilation/passes/fusion/allreduce_rms_fusion.py, config/vllm.py
    (enable_allreduce_rms_fusion); FlashInfer 0.7, comm/trtllm_ar.py, comm/trtllm_mnnvl_ar.py.
    """
    limits, ranks = _FUSED_MIB.get(gpu.compute_capability, {}), step.tensor_parallel
    if not step.is_compiled or not step.release.has_full_graphs or ranks not in limits:
        return 0, 0, 0
    tokens = min(limits[ranks] * MIB // max(1, _ELEMENT * hidden), step.tokens)
    trtllm, mnnvl = (tokens * hidden * _ELEMENT * copies for copies in (4 * ranks, 6))
    has_fused = step.release.has_workspaces
    return 0, (min(trtllm, mnnvl) if has_fused else 0), max(trtllm, mnnvl)


def unseen_bytes(gpu: Entry, step: Step, hidden: int) -> tuple[int, int, int]:
    """The bytes that grow outside PyTorch's allocator between vLLM's two readings and that the
    phantom does not hold: low, likely, high.

    Counts: kernels that are loaded; between GPUs vLLM's own buffers, in whose place NCCL's run
    there: over NVLink custom_all_reduce.py (2 x 8 MiB) where it starts after the first reading
    (0.10.2, gpu_worker.py), and what FlashInfer allocates in the step (fused_reductions).
    Ignores: a draft's. Error: docs/results/serve-starts.md. Source: that of libraries.
    """
    parts = [LOADED_KERNELS]
    if step.tensor_parallel > 1:
        parts += [BETWEEN_GPUS, fused_reductions(gpu, step, hidden)]
        parts += [(_CUSTOM_REDUCE,) * 3] if _starts_nccl(gpu, step) else []
    low, likely, high = (sum(sizes) for sizes in zip(*parts, strict=True))
    return low, likely, high


def _starts_nccl(gpu: Entry, step: Step) -> bool:
    is_linked = gpu.nvlink_bytes_per_s is not None and isinstance(gpu, Gpu)
    return step.tensor_parallel > 1 and step.release.is_nccl_counted and is_linked


def libraries(gpu: Entry, step: Step, hidden: int) -> Term:
    """The growth outside PyTorch's allocator between vLLM's two readings.

    Counts: unseen_bytes; NCCL, and the driver's context, in the releases that count them.
    Ignores: other processes that start or end meanwhile.
    Error: docs/results/serving.md.
    Source: engines/vllm_releases.py; benchmarks/serving/starts.toml.
    """
    parts, what = [unseen_bytes(gpu, step, hidden)], ["kernels loaded in the step"]
    if step.release.is_context_counted:
        parts.append(_context(gpu))
        what.append("the driver's context")
    if step.tensor_parallel > 1:
        what.append("NCCL" if step.release.is_nccl_counted else "buffers between GPUs")
        if _starts_nccl(gpu, step) and isinstance(gpu, Gpu):
            parts.append(find_nccl(gpu, step.tensor_parallel))
    low, likely, high = (sum(sizes) for sizes in zip(*parts, strict=True))
    source = f"vLLM {step.release.name}"
    return Term("kernels and buffers", likely, low, high, ", ".join(what), source)


def _context(gpu: Entry) -> tuple[int, int, int]:
    return gpu.context_low_bytes, gpu.context_bytes, gpu.context_high_bytes


# Above the context, in logs of training: 564 MiB of one rank, 880 to 906 of eight.
_NCCL_LOW, _NCCL_PAIR, _NCCL_RANK = GIB // 2, 564 * MIB, 56 * MIB
_NCCL_HIGH, _NCCL_LINKED = GIB, round(2.1 * GIB)


def outside(gpu: Entry, tensor_parallel: int) -> Term:
    """The bytes held outside PyTorch's allocator: the driver's context, and between GPUs NCCL.

    Counts: both. Ignores: custom all-reduce's buffers; other processes.
    Error: between its two ends; not compared with a GPU here.
    Source: the context from facts/gpus/catalog.toml; NCCL from public logs of training on one and
    eight ranks, its ends from llm-d-planner 0.3.3's table (0.55 GiB with vLLM 0.11, 2.10 GiB with
    0.19, at two ranks and more; the latter where NVLink joins the GPUs, and above what
    facts/gpus/nccl.py gives as the most of a training job, 1.4 GiB on two H100s).
    """
    low, likely, high = _context(gpu)
    if tensor_parallel > 1:
        most = _NCCL_HIGH if gpu.nvlink_bytes_per_s is None else _NCCL_LINKED
        nccl = min(_NCCL_PAIR + _NCCL_RANK * (tensor_parallel - 2), most)
        low, likely, high = low + _NCCL_LOW, likely + nccl, high + most
    what = "the driver's context" + (", NCCL" if tensor_parallel > 1 else "")
    return Term("context and libraries", likely, low, high, what, "catalogue of GPUs")
