"""NVIDIA's measured kernel times, as the wheel aiconfigurator-core has them.

Needs pyarrow. The wheel is unpacked by hand; nothing of it is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ullage.clock.work import ITEMSIZES, Attention, Collective, Kind, MatrixProduct

# The wheel's name of a GPU, by ours. It has none of GB300 and B60 here: the catalogue has not.
SYSTEMS = {
    "a100-80gb": "a100_sxm",
    "h100-80gb": "h100_sxm",
    "h200": "h200_sxm",
    "b200": "b200_sxm",
    "gb200": "gb200",
    "b300": "b300_sxm",
    "l40s": "l40s",
    "rtx-pro-6000-server": "rtx_pro_6000_server",
}
# The wheel's name of a precision, by torch's.
PRECISIONS = {"bfloat16": "bfloat16", "float8_e4m3fn": "fp8", "float4_e2m1fn_x2": "nvfp4"}
# Of several measurements of one thing: torch's own kernels before others, the newest before older.
# vLLM's weights are whatever lay in memory, and a GPU at its power limit multiplies predictable
# numbers faster than a program's. TensorRT-LLM and SGLang were measured with random numbers: the
# former scatters least, the latter's runs last longest, so that the power limit counts in them.
_SHORT_PRODUCTS = "trtllm/1.3.0rc20"
_LONG_PRODUCTS = ("sglang/0.5.14", "sglang/0.5.10")
_LONG_S = 1e-4
_QUANTISED_PRODUCTS = ("vllm/0.24.0",)
_ATTENTION = ("vllm/0.24.0", "vllm/0.14.0")
_NCCL = ("2.29.2", "2.27.3")
_CUSTOM = ("0.24.0", "0.22.0", "0.14.0")
_OPERATIONS = {
    Kind.ALL_REDUCE: "all_reduce",
    Kind.ALL_GATHER: "all_gather",
    Kind.REDUCE_SCATTER: "reduce_scatter",
    Kind.ALL_TO_ALL: "alltoall",
}

Work = MatrixProduct | Attention | Collective


@dataclass(frozen=True, slots=True)
class Measurements:
    """All measured shapes of one kind of work in one precision on one GPU."""

    gpu: str
    kind: Kind
    precision: str
    kernel: str
    source: str
    works: tuple[Work, ...]
    seconds: tuple[float, ...]


def read_all(wheel: Path) -> Iterator[Measurements]:
    """Every table that the wheel has for the GPUs of the catalogue."""
    root = wheel / "aiconfigurator_core" / "systems" / "data"
    for gpu, system in SYSTEMS.items():
        yield from _products_of_random(root, gpu, system)
        for precision in PRECISIONS:
            if precision != "bfloat16":
                yield from _products(root, gpu, system, precision, _QUANTISED_PRODUCTS)
        yield from _attention(root, gpu, system)
        yield from _collectives(root, gpu, system)
        yield from _custom_all_reduce(root, gpu, system)


def read_twice(wheel: Path, gpu: str) -> Iterator[Measurements]:
    """The products in bfloat16 of torch's linear layer, measured with vLLM and with SGLang."""
    root = wheel / "aiconfigurator_core" / "systems" / "data"
    for version in ("vllm/0.24.0", "sglang/0.5.14"):
        yield from _products(root, gpu, SYSTEMS[gpu], "bfloat16", (version,))


def _products_of_random(root: Path, gpu: str, system: str) -> Iterator[Measurements]:
    """Products in bfloat16 of random numbers; on the A100 SGLang's alone, which are more."""
    (long,) = _products(root, gpu, system, "bfloat16", _LONG_PRODUCTS)
    times = dict(zip(long.works, long.seconds, strict=True))
    sources = [long.source]
    if long.source.endswith(f"{_LONG_PRODUCTS[0]}/gemm_perf.parquet"):
        (short,) = _products(root, gpu, system, "bfloat16", (_SHORT_PRODUCTS,))
        sources.append(short.source)
        measured_twice = zip(short.works, short.seconds, strict=True)
        times |= {work: s for work, s in measured_twice if times.get(work, s) < _LONG_S}
    works = sorted(times, key=lambda work: work.point)
    seconds = tuple(times[work] for work in works)
    yield replace(
        long,
        kernel="torch.nn.functional.linear",
        source=" and ".join(sources),
        works=tuple(works),
        seconds=seconds,
    )


def _products(
    root: Path,
    gpu: str,
    system: str,
    precision: str,
    versions: Sequence[str],
) -> Iterator[Measurements]:

    def make(row: dict[str, Any]) -> Work | None:
        if row["gemm_dtype"] != PRECISIONS[precision]:
            return None
        return MatrixProduct(row["m"], row["n"], row["k"], itemsize=ITEMSIZES[precision])

    for version in versions:
        path = root / system / "gemm" / version / "gemm_perf.parquet"
        found = _read(root, path, make)
        if found is not None:
            yield Measurements(gpu, Kind.MATRIX_PRODUCT, precision, *found)
            return


def _attention(root: Path, gpu: str, system: str) -> Iterator[Measurements]:
    kinds = {Kind.ATTENTION_FORWARD: "context", Kind.ATTENTION_DECODE: "generation"}
    for kind, name in kinds.items():
        is_decode = kind is Kind.ATTENTION_DECODE

        def make(row: dict[str, Any], is_decode: bool = is_decode) -> Work | None:  # noqa: FBT001
            types = {row["attn_dtype"], row["kv_cache_dtype"]}
            if types != {"bfloat16"} or row["window_size"] or row["head_dim"] > 256:
                return None
            heads, length = row["num_heads"], row["isl"] + row["step"]
            q_len = 1 if is_decode else length
            kv_heads = row["num_key_value_heads"] or heads
            return Attention(row["batch_size"], heads, kv_heads, row["head_dim"], q_len, length)

        for version in _ATTENTION:
            path = root / system / "attention" / version / f"{name}_attention_perf.parquet"
            found = _read(root, path, make)
            if found is not None:
                yield Measurements(gpu, kind, "bfloat16", *found)
                break


def _collectives(root: Path, gpu: str, system: str) -> Iterator[Measurements]:
    for kind, name in _OPERATIONS.items():

        def make(row: dict[str, Any], kind: Kind = kind, name: str = name) -> Work | None:
            if (row["op_name"], row["nccl_dtype"]) != (name, "half"):
                return None
            return Collective(kind, 2 * row["message_size"], row["num_gpus"])

        for version in _NCCL:
            path = root / system / "comm" / "nccl" / version / "nccl_perf.parquet"
            found = _read(root, path, make)
            if found is not None:
                yield Measurements(gpu, kind, "bytes", *found)
                break


def _custom_all_reduce(root: Path, gpu: str, system: str) -> Iterator[Measurements]:
    """Of vLLM in a CUDA graph. Its times of large messages are NCCL's for as many bfloat16 numbers:
    so the size is counted in numbers.
    """

    def make(row: dict[str, Any]) -> Work | None:
        if row["kernel_source"] != "vLLM_custom_graph":
            return None
        return Collective(Kind.CUSTOM_ALL_REDUCE, 2 * row["message_size"], row["num_gpus"])

    for version in _CUSTOM:
        path = root / system / "comm" / "vllm" / version / "custom_allreduce_perf.parquet"
        found = _read(root, path, make)
        if found is not None:
            yield Measurements(gpu, Kind.CUSTOM_ALL_REDUCE, "bytes", *found)
            return


def _read(
    root: Path, path: Path, make: Callable[[dict[str, Any]], Work | None]
) -> tuple[str, str, tuple[Work, ...], tuple[float, ...]] | None:
    """Kernel, source, shapes and seconds; of a shape that was measured twice, the mean time."""
    import pyarrow.parquet as parquet  # only where the wheel is read

    if not path.is_file():
        return None
    times: dict[Work, list[float]] = {}
    kernels: dict[str, int] = {}
    for row in parquet.read_table(path).to_pylist():
        work = make({"window_size": 0, "step": 0, **row})
        if work is not None and row["latency"] > 0:
            times.setdefault(work, []).append(row["latency"] / 1000)
            kernels[row["kernel_source"]] = kernels.get(row["kernel_source"], 0) + 1
    if not times:
        return None
    kernel = max(kernels, key=lambda name: kernels[name])
    works = sorted(times, key=lambda work: work.point)
    means = tuple(sum(times[work]) / len(times[work]) for work in works)
    if path.parent.parent.name == "nccl":
        kernel = f"NCCL {path.parent.name}"
    return kernel, str(path.relative_to(root)), tuple(works), means
