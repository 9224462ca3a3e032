"""The JSON document of `ullage watch`: a sample, and what follows from it for each job."""

from __future__ import annotations

from typing import Any

from ullage.ground.protocol.plain import document_of
from ullage.operate.watch.alerts.board import Alerts
from ullage.operate.watch.sample_json import sample_to_line
from ullage.operate.watch.view import JobView, View


def watch_document(machine: View, alerts: Alerts) -> dict[str, Any]:
    """The sample (schema "ullage.watch/1") with "outlooks": of each job on each GPU, how far its
    last step's peak is from the limit, and when it reaches it; "sharing": of each device how its
    processes share it ("none", "time-slicing", "mps", "mps+time-slicing", "mig"); and "alerts": the
    incidents that are not over (schema "ullage.alert/1"), the newest first.
    """
    return {**document_of(machine.sample), **_more(machine, alerts)}


def watch_line(machine: View, alerts: Alerts) -> str:
    """The same document in one line."""
    return sample_to_line(machine.sample, _more(machine, alerts))


def _more(machine: View, alerts: Alerts) -> dict[str, Any]:
    events = [event.document for event in alerts.active]
    sharing = [gpu.sharing and gpu.sharing.value for gpu in machine.gpus]
    outlooks = [_outlook(gpu.device.uuid, job) for gpu in machine.gpus for job in gpu.jobs]
    return {"outlooks": outlooks, "sharing": sharing, "alerts": events}


def _outlook(uuid: str | None, job: JobView) -> dict[str, Any]:
    forecast = job.forecast
    return {
        "pid": job.job.pid,
        "uuid": uuid,
        "limit_bytes": job.limit_bytes,
        "headroom_bytes": job.headroom_bytes,
        "growth_bytes_per_step": None if forecast is None else forecast.bytes_per_step,
        "full_in_s": None if forecast is None else forecast.seconds,
    }
