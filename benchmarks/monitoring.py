"""Let a real Prometheus scrape `ullage watch --listen` beside a program that trains on a simulated
GPU, ask it every expression of docs/monitoring, and write docs/results/watch.md.

    python -m benchmarks.monitoring --python .envs/torch-newest/bin/python

Needs `prometheus` on PATH (Debian: apt-get install prometheus). All of it listens on 127.0.0.1.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.provenance import made_by, torch_version
from benchmarks.recording.bare import bare_environment
from benchmarks.results import publish
from ullage.ground.native.libraries import LIBRARY_DIR
from ullage.ground.protocol.variables import NVML
from ullage.players.phantom.device import choose_device
from ullage.players.phantom.nvml.machine import machine_of, open_machine
from ullage.players.phantom.torch_build import check_torch, find_torch

ROOT: Final = Path(__file__).parents[1]
MONITORING: Final = ROOT / "docs" / "monitoring"
GPU: Final = "h100-80gb"
MAIN: Final = "from ullage.cli import main; main()"
PROGRAM: Final = ROOT / "examples" / "growing_losses" / "train.py"
# What the simulated GPU has no figures for. It is hot, so that an alert is raised.
SCRIPT: Final = """\
* utilization 93
* memory_utilization 40
* power 640
* power_limit 700
* temperature 88
* temperature_limit 89
* sm_clock 1755
* memory_clock 2619
* throttle 0x4
* ecc_corrected 3
* ecc_uncorrected 0
* pcie_sent 900
* pcie_received 800
"""
SCRAPE_S: Final = 1
# Series over which `increase` and the rules look back.
SETTLED_S: Final = 100.0
# The simulated NVML does not say whose kernels ran, so these have nothing to show.
WITHOUT_DATA: Final = frozenset({"ullage_process_sm_ratio"})


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression of the dashboard, and how many series Prometheus answered; None: an error."""

    panel: str
    text: str
    num_series: int | None


@dataclass(frozen=True, slots=True)
class AlertState:
    """A rule as Prometheus has evaluated it."""

    name: str
    health: str
    state: str


def free_port() -> int:
    """A port of the loopback address that nobody has."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def running(
    command: Sequence[str], *, env: dict[str, str] | None = None, cwd: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process of its own group, which is killed at the end."""
    process = subprocess.Popen(
        command, env=env, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def start_program(files: ExitStack, python: Path, place: Path) -> None:
    """A leak under `ullage record`, on two GPUs that NVML programs can see."""
    node = place / "node"
    libraries = check_torch(find_torch(str(python)), LIBRARY_DIR).libraries_text()
    open_machine(node, machine_of(choose_device(GPU).environment_text(), libraries, 2, None))
    (node / "script").write_text(SCRIPT)
    environment = bare_environment(python) | {"XDG_RUNTIME_DIR": str(place), NVML: str(node)}
    command = [
        sys.executable, "-c", MAIN, "record", "--python", str(python), "--mode", "counters", "--",
        str(PROGRAM), "--steps", "1000000", "--batch-size", "64",
    ]  # fmt: skip
    files.enter_context(running(command, env=environment, cwd=place))


def start_prometheus(files: ExitStack, prometheus: str, place: Path, exporter: int) -> str:
    """Prometheus with the repository's configuration, quicker and at other ports; its address."""
    text = (MONITORING / "prometheus.yml").read_text(encoding="utf-8")
    text = text.replace("127.0.0.1:9400", f"127.0.0.1:{exporter}")
    text = re.sub(r"_interval: 15s", f"_interval: {SCRAPE_S}s", text)
    (place / "prometheus.yml").write_text(text, encoding="utf-8")
    shutil.copy(MONITORING / "alert-rules.yml", place)
    port = free_port()
    command = [
        prometheus, f"--config.file={place / 'prometheus.yml'}",
        f"--storage.tsdb.path={place / 'data'}", f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    files.enter_context(running(command, cwd=place))
    return f"http://127.0.0.1:{port}"


def ask(address: str, path: str, **query: str) -> Any:
    """The data of an answer of Prometheus; None: it refuses the question."""
    url = f"{address}/api/v1/{path}?{urllib.parse.urlencode(query)}"
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return json.load(answer)["data"]
    except urllib.error.HTTPError:
        return None


def wait_for_target(address: str) -> dict[str, Any]:
    """The target once it is up, for two minutes at most."""
    end_s = time.monotonic() + 120
    while time.monotonic() < end_s:
        try:
            targets = ask(address, "targets")["activeTargets"]
        except OSError:
            targets = []
        if targets and targets[0]["health"] == "up":
            target: dict[str, Any] = targets[0]
            return target
        time.sleep(0.5)
    raise SystemExit("the target did not come up")


def evaluate(address: str) -> Iterator[Expression]:
    """Every expression of the dashboard, with its variables as Grafana would fill them."""
    dashboard = json.loads((MONITORING / "grafana" / "dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            text = target["expr"]
            query = text.replace("$instance", ".*").replace("$gpu", ".*")
            data = ask(address, "query", query=query.replace("$__rate_interval", "1m"))
            yield Expression(panel["title"], text, None if data is None else len(data["result"]))


def read_alerts(address: str) -> Iterator[AlertState]:
    """The rules, as evaluated."""
    for group in ask(address, "rules")["groups"]:
        for rule in group["rules"]:
            yield AlertState(rule["name"], rule["health"], rule["state"])


def has_failed(expression: Expression) -> bool:
    """Whether it has an error, or no data although there should be some."""
    is_empty_by_nature = any(name in expression.text for name in WITHOUT_DATA)
    return expression.num_series is None or (not expression.num_series and not is_empty_by_nature)


def write_results(
    version: str, torch: str, target: dict[str, Any], expressions: Sequence[Expression],
    alerts: Sequence[AlertState], num_samples: int,
) -> None:  # fmt: skip
    """Writes docs/results/watch.md."""
    rows = [
        f"| {each.panel} | `{each.text.replace('|', chr(92) + '|')}` | "
        f"{'error' if each.num_series is None else each.num_series} |"
        for each in expressions
    ]
    states = [f"| {each.name} | {each.health} | {each.state} |" for each in alerts]
    num_well = sum(not has_failed(each) for each in expressions)
    duration_ms = 1000 * target["lastScrapeDuration"]
    num_wrong = sum(each.health != "ok" for each in alerts)
    text = f"""\
# Prometheus beside `ullage watch`

{made_by("benchmarks.monitoring", torch=torch)}

{version} scrapes `ullage watch --alerts --listen` once a second for {SETTLED_S:.0f} s, with the
configuration and the rules of [docs/monitoring](../monitoring/prometheus.yml). The exporter reads
the NVML of two simulated H100; a program that leaks trains on the first under `ullage record`.
Load, power, temperature, clocks and errors are scripted: the simulated GPUs have no figures for
them.

- The target is **{target["health"]}**; its last scrape took {duration_ms:.0f} ms, and a page has
  {num_samples} samples.
- Of the {len(expressions)} expressions of the dashboard, {num_well} are as they should be: without
  an error, and with data where there is something to show.
- Of the {len(alerts)} rules, {len(alerts) - num_wrong} are evaluated without an error.

| panel | expression | series |
|---|---|---|
{chr(10).join(rows)}

No series is expected of the processes' share of the GPU's time: the simulated NVML does not say
whose kernels ran.

| rule | evaluated | state |
|---|---|---|
{chr(10).join(states)}

That each rule fires on its fault and keeps still on a healthy job is tested apart, by
`promtool test rules` on [alert-rules-test.yml](../monitoring/alert-rules-test.yml).

## What was not shown

The dashboard was not opened in a Grafana: neither Debian nor PyPI has one, and npm has its parts
alone. Its expressions were evaluated as above, and its JSON is read by the models of
grafana-foundation-sdk, which keep every field of it but `definition`, the text of a variable's
query that Grafana itself writes beside the query. How the panels look is not shown. Nor was the
compose file started.
"""
    publish("monitoring", text)


def main() -> None:
    """Runs it all, and writes the page; exits with 1 if something is not as it should be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--python", type=Path, required=True)
    python = parser.parse_args().python.absolute()
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        raise SystemExit("there is no prometheus on PATH; on Debian: apt-get install prometheus")
    said = subprocess.run([prometheus, "--version"], check=True, capture_output=True, text=True)
    version = re.search(r"version (\S+)", said.stdout + said.stderr)
    with ExitStack() as files:
        place = Path(files.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        start_program(files, python, place)
        exporter = free_port()
        command = [sys.executable, "-c", MAIN, "watch", "--alerts", "--listen", str(exporter)]
        variables = {"LD_LIBRARY_PATH": str(place / "node"), "XDG_RUNTIME_DIR": str(place)}
        files.enter_context(running(command, env=os.environ | variables, cwd=place))
        address = start_prometheus(files, prometheus, place, exporter)
        wait_for_target(address)
        time.sleep(SETTLED_S)
        target = wait_for_target(address)
        expressions, alerts = list(evaluate(address)), list(read_alerts(address))
        scraped = ask(address, "query", query="scrape_samples_scraped")["result"]
        num_samples = int(scraped[0]["value"][1])
    name = f"Prometheus {version[1] if version else ''}".strip()
    write_results(name, torch_version(python), target, expressions, alerts, num_samples)
    for each in filter(has_failed, expressions):
        print(f"{each.panel}: {each.text}: {each.num_series}", file=sys.stderr)
    sys.exit(any(map(has_failed, expressions)) or any(each.health != "ok" for each in alerts))


if __name__ == "__main__":
    main()
