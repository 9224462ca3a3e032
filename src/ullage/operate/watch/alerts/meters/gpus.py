"""Measures a GPU's state: whether it is there, its heat, its errors, its clocks."""

from __future__ import annotations

from typing import Final

from ullage.operate.watch.alerts.outlook import GpuState
from ullage.operate.watch.alerts.reading import UNKNOWN, Measured, Meter, Subject

# A power cap, set clocks and an idle GPU are as somebody wanted it.
_HARMFUL: Final = {
    "hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown",
}  # fmt: skip


def measure_loss(_: Meter, __: Subject, gpu: GpuState) -> Measured:
    """1 if the GPU has fallen off the bus, 0 if it answers."""
    is_lost = gpu.view.device.is_lost
    text = "the driver has lost it; see `dmesg` for its Xid" if is_lost else "it answers"
    return float(is_lost), text


def measure_temperature(_: Meter, __: Subject, gpu: GpuState) -> Measured:
    """Degrees above the temperature at which this GPU slows down; below it negative."""
    now, slowdown = gpu.view.device.temperature_c, gpu.view.device.slowdown_c
    if now is None or slowdown is None:
        return UNKNOWN
    return float(now - slowdown), f"{now} °C; it slows down at {slowdown} °C"


def measure_throttling(meter: Meter, subject: Subject, gpu: GpuState) -> Measured:
    """The share of the window's samples in which the clocks were held down by heat or by the power
    supply; a power cap alone is not counted.
    """
    reasons = gpu.view.device.throttle_reasons
    if reasons is None:
        return UNKNOWN
    window = meter.add(subject, float(not _HARMFUL.isdisjoint(reasons)))
    if window.span_s < meter.window_s / 2:
        return UNKNOWN
    names = ", ".join(sorted(_HARMFUL & reasons)) or "not now"
    return window.mean, f"clocks are held down: {names}"


def measure_corrected(meter: Meter, subject: Subject, gpu: GpuState) -> Measured:
    """Corrected memory errors within the window."""
    return _errors(meter, subject, gpu.num_ecc_corrected, "corrected")


def measure_uncorrected(meter: Meter, subject: Subject, gpu: GpuState) -> Measured:
    """Uncorrected memory errors within the window."""
    return _errors(meter, subject, gpu.num_ecc_uncorrected, "uncorrected")


def _errors(meter: Meter, subject: Subject, count: int | None, kind: str) -> Measured:
    if count is None:
        return UNKNOWN
    total = meter.add(subject, count).sum
    return total, f"{total:.0f} {kind} memory errors in {meter.window_s / 60:.0f} min"


def measure_power_limit(meter: Meter, subject: Subject, gpu: GpuState) -> Measured:
    """Power as a share of the GPU's limit, as a mean of the window."""
    power, limit = gpu.view.device.power_w, gpu.view.device.power_limit_w
    if power is None or not limit:
        return UNKNOWN
    mean = meter.add(subject, power / limit).mean
    return mean, f"{power:.0f} W; its limit is {limit:.0f} W"
