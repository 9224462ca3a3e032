"""How GPUs reach each other: within a machine, and between machines.

>>> parse_interconnect("nvlink+400Gb/s").between_bytes_per_s
50000000000.0
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ullage.facts.gpus import Gpu
from ullage.ground.errors import SpecError

_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(Gb|GB|Tb|TB)/s")
_BYTES: Final = {"Gb": 1e9 / 8, "GB": 1e9, "Tb": 1e12 / 8, "TB": 1e12}
# One network adapter for each GPU, by architecture: 200 Gb/s ConnectX-6 in the DGX A100, 400 Gb/s
# ConnectX-7 in the DGX H100, H200 and B200, 800 Gb/s ConnectX-8 in the DGX B300.
# Source: NVIDIA, DGX A100, DGX H100/H200, DGX B200 and DGX B300 datasheets, "Networking".
_NETWORK_BYTES_PER_S: Final = {"ampere": 25e9, "hopper": 50e9, "blackwell": 50e9}
_SLOWEST_NETWORK: Final = 12.5e9  # assumed elsewhere: 100 Gb/s
# One hop of a message between machines, as NCCL's tuning model has it for rings and trees.
# Source: NVIDIA, nccl, src/graph/tuning.cc, hwLat, NCCL_HW_NET (Simple).
_LATENCY_S: Final = 14e-6
_GPUS_PER_MACHINE: Final = 8


@dataclass(frozen=True, slots=True)
class Interconnect:
    """The links of a job's GPUs.

    Attributes:
        within_bytes_per_s: of a GPU to the others of its machine, one way; None: as the catalogue
            says of the GPU (NVLink, or the host's link).
        is_pcie: the GPUs of a machine reach each other over the host's link alone.
        between_bytes_per_s: of a GPU to those of other machines, one way; None: those of the
            makers' machines with this GPU.
        latency_s: of a message between machines.
        gpus_per_machine: how many GPUs share a machine.
    """

    within_bytes_per_s: float | None = None
    is_pcie: bool = False
    between_bytes_per_s: float | None = None
    latency_s: float = _LATENCY_S
    gpus_per_machine: int = _GPUS_PER_MACHINE

    def network(self, gpu: Gpu) -> tuple[float, str]:
        """The bytes a second between machines, and what is assumed of them; empty: they are stated.

        Assumes: one adapter for each GPU, as in the maker's own machines of that architecture.
        """
        if self.between_bytes_per_s is not None:
            return self.between_bytes_per_s, ""
        rate = _NETWORK_BYTES_PER_S.get(gpu.architecture.lower(), _SLOWEST_NETWORK)
        return rate, f"assumed: {rate * 8e-9:.0f} Gb/s a GPU between machines"


def default_interconnect() -> Interconnect:
    """The links where none are stated: those of the GPU's own machines, eight GPUs each."""
    return Interconnect()


def parse_interconnect(text: str) -> Interconnect:
    """Reads links from a text.

    Args:
        text: within a machine, "nvlink", "pcie" or a rate; "+"; between machines, a rate for each
            GPU. A rate alone is that between machines. Such as "nvlink", "pcie", "400Gb/s",
            "nvlink+400Gb/s", "900GB/s+50GB/s"; "x4" at the end: four GPUs a machine.

    Raises:
        SpecError: the text is not of this form.
    """
    body, is_sized, count = text.strip().partition("x")
    parts = [part.strip() for part in body.strip().split("+")]
    size = int(count) if is_sized and count.isdecimal() else 0
    if len(parts) > 2 or not parts[-1] or (is_sized and size < 1):
        raise _unreadable(text)
    within, between = (parts[0], parts[1]) if len(parts) == 2 else ("", parts[0])
    if between.lower() in {"nvlink", "pcie"} and not within:
        within, between = between, ""
    kind = within.lower()
    return Interconnect(
        within_bytes_per_s=None if kind in {"", "nvlink", "pcie"} else _rate(within, text),
        is_pcie=kind == "pcie",
        between_bytes_per_s=_rate(between, text) if between else None,
        gpus_per_machine=size or _GPUS_PER_MACHINE,
    )


def _rate(part: str, text: str) -> float:
    match = _RATE.fullmatch(part)
    if match is None or not float(match[1]):
        raise _unreadable(text)
    return float(match[1]) * _BYTES[match[2]]


def _unreadable(text: str) -> SpecError:
    return SpecError(
        f"interconnect {text!r}; expected such as 'nvlink', 'pcie', '400Gb/s', 'nvlink+400Gb/s' "
        "or '900GB/s+50GB/s x4'"
    )
