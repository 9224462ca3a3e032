"""The use of this machine's GPUs: `ullage watch` and `ullage.watch_gpus`.

    for sample in ullage.watch_gpus(interval_s=1.0):
        print([device.used_bytes for device in sample.devices])

An iterator of samples is also what a recording is, so whatever reads the one reads the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ullage.ground.errors import SpecError
from ullage.operate.watch.sample import Sample

if TYPE_CHECKING:
    from ullage.operate.watch.source import Source

__all__ = ["Sample"]
# The driver itself measures no more often.
MIN_INTERVAL_S = 0.1
_MAX_INTERVAL_S = 86_400.0


def watch_gpus(interval_s: float = 1.0) -> Iterator[Sample]:
    """A sample of this machine's GPUs each `interval_s` seconds, without end, the first at once.

    Raises:
        SpecError: the interval is below 0.1 s or beyond a day.
        EnvironmentProblem: nvidia-ml-py is not installed (`pip install 'ullage[watch]'`).
        DeviceError: there is no NVML or no driver here.
    """
    if not MIN_INTERVAL_S <= interval_s <= _MAX_INTERVAL_S:
        raise SpecError(
            f"an interval of {interval_s:g} s is not possible; give one from {MIN_INTERVAL_S:g} s "
            "to a day"
        )
    from ullage.operate.watch.machine import MachineSource
    from ullage.operate.watch.nvml.library import open_nvml

    return _samples(MachineSource(open_nvml()), interval_s)


def _samples(source: Source, interval_s: float) -> Iterator[Sample]:
    from ullage.operate.watch.source import samples

    try:
        yield from samples(source, interval_s)
    finally:
        source.close()


def read_samples(
    path: str | Path, *, on_warning: Callable[[str], None] | None = None
) -> Iterator[Sample]:
    """The samples of a file that `ullage watch --record` wrote, as fast as they are asked for.

    Raises:
        SpecError: when the samples are asked for, if the file is not such a recording.
    """
    from ullage.operate.watch.recording import replay

    return replay(Path(path), on_warning=on_warning)
