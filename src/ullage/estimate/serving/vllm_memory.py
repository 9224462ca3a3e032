"""GPU memory of vLLM besides weights and cache: intervals, each with its cause.

vLLM measures these when it starts, and they differ between starts of the same configuration by
tenths of a GiB. Nothing here is fitted: each bound follows from vLLM's source, or from a published
measurement.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ullage.models.layers import Attention, Latent, Model, Part, Recurrent
from ullage.units import GIB, KIB

if TYPE_CHECKING:
    from ullage.gpus.gpu import Gpu

__all__ = ["Spread", "activations", "batch_defaults", "graphs", "outside"]


@dataclass(frozen=True, slots=True)
class Spread:
    """An interval with its likely value."""

    low_bytes: int
    bytes: int
    high_bytes: int
    what: str
    source: str


def batch_defaults(gpu: Gpu) -> tuple[int, int]:
    """max_num_batched_tokens and max_num_seqs of `vllm serve` where the user says nothing.

    Counts: tokens and requests of a step. Ignores: other usage contexts, such as its Python API.
    Error: none for the version named.
    Source: vLLM 0.32, engine/arg_utils.py, get_batch_defaults.
    """
    if gpu.total_bytes >= 160 * GIB:
        return 16384, 1024
    if gpu.total_bytes >= 70 * GIB and "a100" not in gpu.name.lower():
        return 8192, 1024
    return 2048, 256


# Bytes for each logit in profile_run's sampler: the 16-bit logits and their 32-bit copy; with the
# probabilities, and the sorted values and indices of top-p; with a copy of each.
_LOGIT_BYTES: Final = (6, 22, 36)


def activations(model: Model, batched: int, seqs: int, tensor_parallel: int) -> Spread:
    """The peak of profile_run: a step of max_num_batched_tokens, and then the sampler.

    Counts: the widest moment of a layer (residual, input, the widest product and what is made of
    it), experts' inputs and products, or logits of max_num_seqs rows with the sampler's copies,
    whichever is more.
    Ignores: attention's workspace; encoders of images and audio.
    Error: not compared with a GPU here. vLLM's own figure moves by 12 % with the state of the
    compile cache (docs/results/serving.md).
    Source: vLLM 0.32, v1/worker/gpu_worker.py, gpu_model_runner.py,
    v1/sample/ops/topk_topp_sampler.py.
    """
    widest = model.widest // tensor_parallel
    experts = [
        weight for weight in model.weights if weight.part is Part.EXPERTS and weight.is_linear
    ]
    layer = batched * 2 * (2 * model.hidden + widest + widest // 2)
    if experts:
        width = max(weight.out for weight in experts) + max(weight.into for weight in experts)
        layer += batched * 2 * model.top_experts * width
    rows = min(seqs, batched) * model.vocab
    low, likely, high = (max(layer, rows * each) for each in _LOGIT_BYTES)
    return Spread(
        low,
        likely,
        high + layer,
        f"a step of {batched:,} tokens, then logits of {min(seqs, batched):,} requests",
        "read from vLLM 0.32's profile_run; not measured",
    )


_SIZES: Final = 51  # 1, 2, 4, 8 to 256 by 8, then to 512 by 16
_NODE_LOW, _NODE_HIGH = 10_000, round(67.6 * KIB)
_NODE_BYTES: Final = (_NODE_LOW, round((_NODE_LOW * _NODE_HIGH) ** 0.5), _NODE_HIGH)
_NODES: Final = (8, 11, 12)  # kernels of a layer, fused at best


def graphs(model: Model, seqs: int) -> Spread:
    """CUDA graphs: one for each batch size, decoding whole and prompts in pieces.

    Counts: nodes, at 10 kB to 67.6 KiB each, the interval that the phantom uses; most likely its
    geometric middle. The low end has graphs of one of the two kinds alone.
    Ignores: the private pool's tensors, which the largest size holds and the others share.
    Error: not compared with a GPU here; vLLM's own estimate has been wrong by a factor of three.
    Source: vLLM 0.32, config/compilation.py (51 sizes up to 512);
    docs/design/how-it-works.md (a node).
    """
    most = min(512, 2 * seqs)
    sizes = _SIZES if most >= 512 else 3 + most // 8
    layers = sum(isinstance(layer, Attention | Latent | Recurrent) for layer in model.layers)
    low, likely, high = (
        factor * sizes * layers * nodes * each
        for factor, nodes, each in zip((1, 2, 2), _NODES, _NODE_BYTES, strict=True)
    )
    return Spread(low, likely, high, f"{sizes} batch sizes of {layers} layers", "nodes counted")


_NCCL: Final = (GIB // 2, 2 * GIB, round(2.1 * GIB))


def outside(gpu: Gpu, tensor_parallel: int) -> Spread:
    """What is held outside PyTorch's allocator: the driver's context, and between GPUs NCCL.

    Counts: both. Ignores: custom all-reduce's buffers; other processes.
    Error: between its two ends; not compared with a GPU here.
    Source: the context from gpus/catalog.toml; NCCL from llm-d-planner 0.3.3's table (0.55 GiB with
    vLLM 0.11, 2.10 GiB with 0.19, at two ranks and more).
    """
    low, likely, high = gpu.context_low_bytes, gpu.context_bytes, gpu.context_high_bytes
    if tensor_parallel > 1:
        low, likely, high = (a + b for a, b in zip((low, likely, high), _NCCL, strict=True))
    what = "the driver's context" + (", NCCL" if tensor_parallel > 1 else "")
    return Spread(low, likely, high, what, "catalogue of GPUs")
