"""Meters of a GPU's state: whether it is there, its heat, its errors, its clocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from ullage.watch.alerts.outlook import GpuState, Outlook, gpu_id
from ullage.watch.alerts.reading import Meter, Reading, Subject

# A power cap, set clocks and an idle GPU are as somebody wanted it.
_HARMFUL: Final = {
    "hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown",
}  # fmt: skip


def _each(
    outlook: Outlook, measure: Callable[[GpuState, Subject], tuple[float | None, str]]
) -> Iterator[Reading]:
    for gpu in outlook.gpus:
        subject = Subject(gpu_id(gpu.view.device), gpu_index=gpu.view.device.index)
        yield Reading(subject, *measure(gpu, subject))


class Lost(Meter):
    """1 if the GPU has fallen off the bus, 0 if it answers."""

    def read(self, outlook: Outlook) -> Iterator[Reading]:
        """A reading of each GPU."""
        return _each(outlook, self._measure)

    def _measure(self, gpu: GpuState, _: Subject) -> tuple[float, str]:
        is_lost = gpu.view.device.is_lost
        text = "the driver has lost it; see `dmesg` for its Xid" if is_lost else "it answers"
        return float(is_lost), text


class Temperature(Meter):
    """Degrees above the temperature at which this GPU slows down; below it negative."""

    def read(self, outlook: Outlook) -> Iterator[Reading]:
        """A reading of each GPU."""
        return _each(outlook, self._measure)

    def _measure(self, gpu: GpuState, _: Subject) -> tuple[float | None, str]:
        now, slowdown = gpu.view.device.temperature_c, gpu.view.device.slowdown_c
        if now is None or slowdown is None:
            return None, ""
        return float(now - slowdown), f"{now} °C; it slows down at {slowdown} °C"


class Throttling(Meter):
    """The share of the window's samples in which the clocks were held down by heat or by the power
    supply; a power cap alone is not counted.
    """

    def read(self, outlook: Outlook) -> Iterator[Reading]:
        """A reading of each GPU."""
        self._time_s = outlook.time_s
        return _each(outlook, self._measure)

    def _measure(self, gpu: GpuState, subject: Subject) -> tuple[float | None, str]:
        reasons = gpu.view.device.throttle_reasons
        if reasons is None:
            return None, ""
        window = self.window(subject)
        window.add(self._time_s, float(not _HARMFUL.isdisjoint(reasons)))
        if window.span_s < self.window_s / 2:
            return None, ""
        names = ", ".join(sorted(_HARMFUL & reasons)) or "not now"
        return window.mean, f"clocks are held down: {names}"


class _Errors(Meter):
    """Memory errors within the window."""

    kind = ""

    def read(self, outlook: Outlook) -> Iterator[Reading]:
        """A reading of each GPU."""
        self._time_s = outlook.time_s
        return _each(outlook, self._measure)

    def _measure(self, gpu: GpuState, subject: Subject) -> tuple[float | None, str]:
        count = self._count(gpu)
        if count is None:
            return None, ""
        window = self.window(subject)
        window.add(self._time_s, count)
        text = f"{window.sum:.0f} {self.kind} memory errors in {self.window_s / 60:.0f} min"
        return window.sum, text

    def _count(self, gpu: GpuState) -> int | None:
        raise NotImplementedError


class Corrected(_Errors):
    """Corrected memory errors within the window."""

    kind = "corrected"

    def _count(self, gpu: GpuState) -> int | None:
        return gpu.num_ecc_corrected


class Uncorrected(_Errors):
    """Uncorrected memory errors within the window."""

    kind = "uncorrected"

    def _count(self, gpu: GpuState) -> int | None:
        return gpu.num_ecc_uncorrected


class PowerLimit(Meter):
    """Power as a share of the GPU's limit, as a mean of the window."""

    def read(self, outlook: Outlook) -> Iterator[Reading]:
        """A reading of each GPU."""
        self._time_s = outlook.time_s
        return _each(outlook, self._measure)

    def _measure(self, gpu: GpuState, subject: Subject) -> tuple[float | None, str]:
        power, limit = gpu.view.device.power_w, gpu.view.device.power_limit_w
        if power is None or not limit:
            return None, ""
        window = self.window(subject)
        window.add(self._time_s, power / limit)
        return window.mean, f"{power:.0f} W; its limit is {limit:.0f} W"
