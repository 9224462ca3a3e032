"""`ullage watch --otlp` as it is typed, beside the phantom's NVML."""

from __future__ import annotations

import importlib.util
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.unit.watch.otlp.conftest import Collector, collector, parse

from ullage.cli.main import run_cli
from ullage.gpus.catalog import find_gpu
from ullage.native.libraries import LIBRARY_DIR
from ullage.phantom.device import choose_device
from ullage.protocol.variables import DEVICE, NUM_DEVICES, PHANTOM

__all__ = ["collector"]

POD_UID = "0d5e9cd8-5a2c-4f4e-9c1e-0123456789ab"
HAS_SDK = importlib.util.find_spec("opentelemetry") is not None


def variables(directory: Path) -> dict[str, str]:
    """Those of a machine with two GPUs."""
    return {
        PHANTOM: "1",
        NUM_DEVICES: "2",
        DEVICE: choose_device(gpu="h100-80gb").environment_text(),
        "LD_LIBRARY_PATH": str(LIBRARY_DIR),
        "XDG_RUNTIME_DIR": str(directory),
    }


@pytest.mark.skipif(not HAS_SDK, reason="the extra `otel` is not installed")
@pytest.mark.parametrize("words", [("--otlp",), ("--otlp", "--listen", "0", "--alerts")])
def test_it_pushes_until_it_is_stopped(
    place: Any, tmp_path: Path, collector: Collector, words: tuple[str, ...]
) -> None:
    environment = {
        **variables(tmp_path),
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_METRIC_EXPORT_INTERVAL": "200",
        "OTEL_RESOURCE_ATTRIBUTES": "k8s.pod.name=watch-0,cluster=test",
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
        "POD_UID": POD_UID,
    }
    with place.start("watch", *words, "--interval", "0.1", **environment) as process:
        collector.wait_for(3)
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert f"Pushing metrics to {collector.url.removeprefix('http://')}\n" in stderr
    resource, metrics = parse(collector.requests[-1][2])
    assert resource["service.name"] == "ullage"
    assert {"host.name", "service.version"} <= resource.keys()
    assert (resource["k8s.pod.uid"], resource["k8s.pod.name"]) == (POD_UID, "watch-0")
    assert resource["cluster"] == "test"
    limits = metrics["hw.gpu.memory.limit"][2]
    assert sorted(labels["hw.name"] for labels, _ in limits) == ["GPU 0", "GPU 1"]
    assert {value for _, value in limits} == {find_gpu("h100-80gb").total_bytes}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--otlp"], "OTEL_EXPORTER_OTLP_ENDPOINT is not set"),
        (["--otlp", "collector:4318"], "holds no web address"),
        (["--otlp", "http://127.0.0.1:9", "--once"], "does not go with --once or --replay"),
        (["--otlp", "http://127.0.0.1:9", "--key", "a.pem"], "give --listen"),
    ],
)
def test_wrong_use(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    assert run_cli(["watch", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.skipif(HAS_SDK, reason="the extra `otel` is installed")
def test_without_the_sdk_it_says_what_to_install(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["watch", "--otlp", "http://127.0.0.1:9"]) == 2
    assert "pip install 'ullage[otel]'" in " ".join(capsys.readouterr().err.split())
