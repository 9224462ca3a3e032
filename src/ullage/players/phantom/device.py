"""The device that the phantom plays: an entry of the catalogue, or one with other memory or another
capability.

device = choose_device(gpu="rtx-4090")
environment[DEVICE] = device.environment_text()
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ullage.facts.gpus.catalog import Gpu, find_gpu
from ullage.facts.gpus.nccl import find_nccl_kernels, has_multicast, has_peer_access
from ullage.ground.errors import SpecError
from ullage.ground.units import PIB, format_bytes, parse_bytes

# Without any device option: the GPU that most programs are written for, and it never runs out.
DEFAULT_GPU = "h100-80gb"

# The compute capabilities that torch's CUDA 12 and 13 builds have code for begin here.
_LOWEST_CAPABILITY = (5, 0)


@dataclass(frozen=True, slots=True)
class PhantomDevice:
    """A device that is data: a GPU's figures, and whether it can run out of memory; beyond
    `budget_bytes` it does, as if others held the rest. None: all of it may be used.
    """

    gpu: Gpu
    is_unlimited: bool
    budget_bytes: int | None = None

    @property
    def usable(self) -> Gpu:
        """The GPU with the memory that may be used of it, which a verdict is about."""
        if self.budget_bytes is None:
            return self.gpu
        slug = f"{self.gpu.slug} within {format_bytes(self.budget_bytes)}"
        return _with_total(self.gpu, slug, self.budget_bytes)

    @property
    def model(self) -> str:
        """The slug in the catalogue, without what `--memory` and `--capability` add to it, which
        changes no time.
        """
        return self.gpu.slug.partition(" ")[0]

    def environment_text(self) -> str:
        """The text that the native library reads in the variable DEVICE."""
        gpu = self.gpu
        nccl_low_bytes, nccl_high_bytes = find_nccl_kernels(gpu)
        fields = {
            "name": gpu.name.replace(";", ","),
            "capability": ".".join(map(str, gpu.compute_capability)),
            "total_bytes": gpu.total_bytes,
            # The verdict goes by the upper end, and a program that adapts to what is free must
            # meet the same device that it is judged by.
            "context_bytes": gpu.context_high_bytes,
            "budget_bytes": self.budget_bytes,
            "unlimited": int(self.is_unlimited),
            "peer_access": int(has_peer_access(gpu)),
            "multicast": int(has_multicast(gpu)),
            "nccl_low_bytes": nccl_low_bytes,
            "nccl_high_bytes": nccl_high_bytes,
            "multiprocessors": gpu.num_multiprocessors,
            "shared_bytes_per_block": gpu.shared_bytes_per_block_optin,
            "shared_bytes_per_multiprocessor": gpu.shared_bytes_per_multiprocessor,
            "threads_per_multiprocessor": gpu.threads_per_multiprocessor,
            "blocks_per_multiprocessor": gpu.blocks_per_multiprocessor,
            "l2_bytes": gpu.l2_bytes,
            "bus_bits": gpu.memory_bus_bits,
            "clock_khz": gpu.clock_khz,
            "memory_clock_khz": gpu.memory_clock_khz,
        }
        # What nobody states is left to the library, which takes an H100's.
        known = {key: value for key, value in fields.items() if value is not None}
        return ";".join(f"{key}={value}" for key, value in known.items())


def choose_device(
    gpu: str | None = None,
    *,
    memory: str | int | None = None,
    capability: str | None = None,
    budget: str | int | None = None,
) -> PhantomDevice:
    """The device for a run.

    Args:
        gpu: a slug of the catalogue; None is an H100-80.
        memory: total bytes as CUDA reports them, or a text such as "24GiB"; None: unchanged.
        capability: compute capability such as "8.9"; None leaves it unchanged.
        budget: what may be used of it, such as "20GiB"; None: all of it.

    Without any of them the device never runs out.

    Raises:
        SpecError: an unknown GPU, one without CUDA, a malformed size or capability, or a budget
            that is more than the device has.
    """
    is_unlimited = all(option is None for option in (gpu, memory, capability, budget))
    try:
        entry = find_gpu(DEFAULT_GPU if gpu is None else gpu)
    except SpecError as error:
        raise SpecError(f"{error}; for another GPU give --memory 24GiB --capability 8.9") from None
    if memory is not None:
        entry = _with_memory(entry, parse_bytes(memory))
    if capability is not None:
        numbers = _parse_capability(capability)
        entry = replace(entry, slug=f"{entry.slug} as {capability}", compute_capability=numbers)
    return PhantomDevice(
        entry, is_unlimited, None if budget is None else parse_budget(entry, budget)
    )


def parse_budget(gpu: Gpu, budget: str | int) -> int:
    """Reads what may be used of a GPU, the driver's context included.

    Raises:
        SpecError: it is more than the GPU has, or no more than the context takes.
    """
    size = parse_bytes(budget)
    if size > gpu.total_bytes:
        raise SpecError(
            f"a budget of {format_bytes(size)} is more than {gpu.slug} has, "
            f"{format_bytes(gpu.total_bytes)}; give less, or another --gpu"
        )
    if size <= gpu.context_high_bytes:
        raise SpecError(
            f"a budget of {format_bytes(size)} is not more than the driver's own context takes "
            f"({format_bytes(gpu.context_high_bytes)} on {gpu.slug})"
        )
    return size


def _with_memory(gpu: Gpu, total_bytes: int) -> Gpu:
    if total_bytes <= gpu.context_high_bytes:
        raise SpecError(
            f"a memory of {format_bytes(total_bytes)} is not more than the driver's own context "
            f"takes ({format_bytes(gpu.context_high_bytes)} on {gpu.slug}); give the device's "
            "whole memory, such as 24GiB"
        )
    if total_bytes > PIB:
        raise SpecError(
            f"a memory of {format_bytes(total_bytes)} is more than the largest that can be played, "
            f"{format_bytes(PIB)}; without --gpu and --memory the device never runs out"
        )
    return _with_total(gpu, f"{gpu.slug} with {format_bytes(total_bytes)}", total_bytes)


def _with_total(gpu: Gpu, slug: str, total_bytes: int) -> Gpu:
    return replace(
        gpu,
        slug=slug,
        total_bytes=total_bytes,
        total_low_bytes=total_bytes,
        total_high_bytes=total_bytes,
        is_total_exact=True,
    )


def _parse_capability(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,2})\.(\d)", text.strip())
    if not match or (int(match[1]), int(match[2])) < _LOWEST_CAPABILITY:
        raise SpecError(
            f"capability={text!r} is not a compute capability; expected major.minor from 5.0 on, "
            "such as 8.9 or 9.0"
        )
    return int(match[1]), int(match[2])
