"""Measures the rates of a GPU, and writes each measurement: `measure_rates.py cuda FILE`.

`ullage calibrate` runs it. It works in any environment with torch and imports nothing of ullage.
CUDA events time the kernels while the device is busy with earlier work, so the times do not include
the host's launches. Each figure is the median of several.

With "cpu" instead of "cuda" it measures small sizes on the CPU, so that tests can run its code.
Those figures describe no GPU.

    {"device": ..., "samples": [[kind, of, work, seconds], ...], "skipped": {what: why}, ...}
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

_REPEATS = 7
_AT_LEAST_S = 0.002
_MOST_CALLS = 50
_MIB = 1024 * 1024
_LAUNCHES = 2000
_LIMIT_S = 120
_PEERS = "peers"
# Matrices of n x n; bytes of tensors; tokens of a sequence. Without a GPU they are small.
_SIZES = {
    "cuda": {"matmul": (1024, 2048, 4096, 8192), "memory": (32, 128, 512), "tokens": (1024, 4096)},
    "cpu": {"matmul": (64, 128, 192), "memory": (1, 2, 4), "tokens": (64, 128)},
}


class Meter:
    """Times calls on one device, and stores the times.

    Attributes:
        samples: [kind, of, work, seconds] for each call.
        skipped: what could not be measured, and why.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.samples: list[list[Any]] = []
        self.skipped: dict[str, str] = {}
        self._is_gpu = device == "cuda"
        self._before = torch.zeros(64 * _MIB if self._is_gpu else 1, device=device)

    def time(self, kind: str, of: str, work: float, call: Callable[[], object]) -> None:
        """Measures a call that does this amount of work."""
        for _ in range(2):
            call()
        seconds = self._batch(call, 1)
        calls = int(min(_MOST_CALLS, max(1, _AT_LEAST_S / max(seconds, 1e-9))))
        median = statistics.median(self._batch(call, calls) for _ in range(_REPEATS))
        self.samples.append([kind, of, work, median])

    def try_to(self, what: str, measure: Callable[[], None]) -> None:
        """Measures, or stores the reason why that is not possible here."""
        try:
            measure()
        except (RuntimeError, AttributeError, TypeError, ValueError, AssertionError) as error:
            self.skipped[what] = (str(error).splitlines() or [type(error).__name__])[0][:200]
        if self._is_gpu:
            torch.cuda.empty_cache()

    def _batch(self, call: Callable[[], object], calls: int) -> float:
        """The seconds per call, for several calls in a row."""
        if not self._is_gpu:
            start_s = time.perf_counter()
            for _ in range(calls):
                call()
            return (time.perf_counter() - start_s) / calls
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        for _ in range(20):  # keeps the device busy while the host launches the timed calls
            self._before.add_(1)
        start.record()
        for _ in range(calls):
            call()
        end.record()
        torch.cuda.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / calls


def measure_matmul(meter: Meter, precision: str) -> None:
    """Measures products of square matrices of random numbers; zeros would be faster than data."""
    kinds = {"tf32": torch.float32, "fp32": torch.float32}
    dtype = kinds[precision] if precision in kinds else getattr(torch, precision)
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    for n in _SIZES[meter.device]["matmul"]:
        left, right = (torch.randn(n, n, device=meter.device).to(dtype) for _ in range(2))
        call = partial(torch.mm, left, right)
        if precision.startswith("float8"):
            unit_scale = torch.ones((), device=meter.device)
            columns = right.t().contiguous().t()
            scaled = partial(torch._scaled_mm, scale_a=unit_scale, scale_b=unit_scale)
            call = partial(scaled, left, columns, out_dtype=torch.bfloat16)
        meter.time("matmul", precision, 2.0 * n**3, call)
    torch.backends.cuda.matmul.allow_tf32 = False


def measure_attention(meter: Meter) -> None:
    """Measures attention without a mask, as large as in a layer. Operations are counted as in
    torch.utils.flop_counter: two products forward, five backward.
    """
    batch, heads, dim = (8, 16, 64) if meter.device == "cuda" else (1, 2, 16)
    for tokens in _SIZES[meter.device]["tokens"]:
        shape = batch, heads, tokens, dim
        inputs = [
            torch.randn(shape, device=meter.device, dtype=torch.bfloat16, requires_grad=True)
            for _ in range(3)
        ]
        work = 2.0 * batch * heads * tokens * tokens * dim
        attend = partial(F.scaled_dot_product_attention, *inputs)
        with torch.no_grad():
            meter.time("attention", "forward", 2 * work, attend)
        result = attend()
        slope = torch.randn_like(result)
        backward = partial(torch.autograd.grad, result, inputs, slope, retain_graph=True)
        meter.time("attention", "backward", 5 * work, backward)


def measure_memory(meter: Meter) -> None:
    """Measures a copy and a pointwise operation, by the bytes that they read and write."""
    for mebibytes in _SIZES[meter.device]["memory"]:
        source, other, target = (
            torch.randn(mebibytes * _MIB // 4, device=meter.device) for _ in range(3)
        )
        size = mebibytes * _MIB
        meter.time("memory", "copy", 2.0 * size, partial(target.copy_, source))
        meter.time("memory", "add", 3.0 * size, partial(torch.add, source, other, out=target))


def measure_link(meter: Meter) -> None:
    """Measures copies from and to pinned memory."""
    is_gpu = meter.device == "cuda"
    for mebibytes in _SIZES[meter.device]["memory"]:
        host = torch.zeros(mebibytes * _MIB, dtype=torch.uint8, pin_memory=is_gpu)
        there = torch.zeros(mebibytes * _MIB, dtype=torch.uint8, device=meter.device)
        size = float(mebibytes * _MIB)
        meter.time("to_device", "", size, partial(there.copy_, host, non_blocking=True))
        meter.time("to_host", "", size, partial(host.copy_, there, non_blocking=True))


def measure_launch(meter: Meter) -> None:
    """Measures the host's time between two small operations while the device waits for work."""
    tensor = torch.zeros(16, device=meter.device)

    def launch() -> float:
        start_s = time.perf_counter()
        for _ in range(_LAUNCHES):
            tensor.add(tensor)
        return (time.perf_counter() - start_s) / _LAUNCHES

    launch()
    for _ in range(_REPEATS):
        if meter.device == "cuda":
            torch.cuda.synchronize()
        meter.samples.append(["launch", "", 1.0, launch()])


def measure_peers(meter: Meter) -> None:
    """Measures collectives among all GPUs, by the bytes that one rank sends. Each rank has its own
    process.
    """
    is_gpu = meter.device == "cuda"
    size = torch.cuda.device_count() if is_gpu else 2
    if size < 2:
        raise RuntimeError("there is one GPU only")
    with tempfile.TemporaryDirectory() as directory:
        meeting, output = Path(directory, "meeting"), Path(directory, "found")
        command = [sys.executable, __file__, meter.device, str(output), _PEERS, str(meeting)]
        # The ranks of one machine need no other network; NCCL's data goes from GPU to GPU.
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
        ranks = [
            subprocess.Popen([*command, str(rank), str(size)], env=environment)
            for rank in range(size)
        ]
        try:
            codes = [rank.wait(_LIMIT_S) for rank in ranks]
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"the ranks did not end within {_LIMIT_S} s") from None
        finally:
            for rank in ranks:
                rank.kill()
        if any(codes):
            raise RuntimeError(f"the ranks ended with {codes}")
        meter.samples += json.loads(output.read_text(encoding="utf-8"))


def measure_as_rank(device: str, output: str, meeting: str, rank: int, size: int) -> None:
    """Runs one rank of `measure_peers`; rank 0 writes the measurements."""
    import torch.distributed as dist

    backend = "gloo"
    if device == "cuda":
        torch.cuda.set_device(rank)
        backend = "nccl"
    dist.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=size)
    meter = Meter(device)
    for mebibytes in _SIZES[device]["memory"]:
        elements = mebibytes * _MIB // 4 // size * size
        whole, part = (
            torch.zeros(elements // parts, device=device, dtype=torch.float32)
            for parts in (1, size)
        )
        sent = 4.0 * elements * (size - 1) / size
        reduce = partial(dist.all_reduce, whole)
        gather = partial(dist.all_gather_into_tensor, whole, part)
        # All ranks must make equally many calls, so the number must not depend on measured times.
        for kind, work, call in (("all_reduce", 2 * sent, reduce), ("all_gather", sent, gather)):
            seconds = [_timed(call, device) for _ in range(_REPEATS + 2)][2:]
            meter.samples.append(["peers", kind, work, statistics.median(seconds)])
    dist.destroy_process_group()
    if rank == 0:
        Path(output).write_text(json.dumps(meter.samples), encoding="utf-8")


def _timed(call: Callable[[], object], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start_s = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start_s


def main(device: str, output: str) -> None:
    """Makes all measurements, and writes them."""
    if os.environ.get("ULLAGE_PHANTOM"):
        raise SystemExit("this GPU is a phantom: its kernels do nothing, and times mean nothing")
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit(f"torch {torch.__version__} finds no GPU here")
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    meter = Meter(device)
    for precision in ("bfloat16", "float16", "tf32", "fp32", "float8_e4m3fn"):
        meter.try_to(f"matmul {precision}", partial(measure_matmul, meter, precision))
    for name, measure in (
        ("attention", measure_attention),
        ("memory", measure_memory),
        ("link", measure_link),
        ("launch", measure_launch),
        ("peers", measure_peers),
    ):
        meter.try_to(name, partial(measure, meter))
    is_gpu = device == "cuda"
    document = {
        "device": torch.cuda.get_device_name() if is_gpu else "cpu",
        "total_bytes": torch.cuda.get_device_properties(0).total_memory if is_gpu else 0,
        "num_gpus": torch.cuda.device_count() if is_gpu else 2,
        "driver": _driver() if is_gpu else "",
        "torch": torch.__version__,
        "samples": meter.samples,
        "skipped": meter.skipped,
    }
    Path(output).write_text(json.dumps(document), encoding="utf-8")


def _driver() -> str:
    """The driver's version from nvidia-smi; empty if there is none."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return completed.stdout.splitlines()[0].strip() if completed.stdout.strip() else ""


if __name__ == "__main__":
    if _PEERS in sys.argv:
        measure_as_rank(sys.argv[1], sys.argv[2], sys.argv[4], int(sys.argv[5]), int(sys.argv[6]))
    else:
        main(*sys.argv[1:])
