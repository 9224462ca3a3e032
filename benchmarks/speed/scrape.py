"""Measure how long a scrape of `ullage watch --listen` takes with 8 GPUs and 100 processes, and
write docs/results/watch.md.

    python -m benchmarks.speed.scrape [--scrapes 500]

The sample is made up, and everything in it is known, so that no metric is absent. Server and client
are in one process: they share its interpreter, and what the client takes is counted too. Needs the
extra ullage[watch].
"""

import argparse
import http.client
import os
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace

from benchmarks.provenance import made_by
from benchmarks.results import publish
from ullage.ground.protocol.job import Job, JobDevice, StepPeak
from ullage.operate.watch.sample import DeviceSample, ProcessKind, ProcessSample, Sample
from ullage.verbs.watch.listen_function import Exporter, open_exporter
from ullage.verbs.watch.options import WatchOptions

NUM_GPUS, NUM_PROCESSES = 8, 100
GOAL_S = 0.050
GIB = 2**30
FORMATS = (
    ("Prometheus text", "text/plain;version=0.0.4"),
    ("OpenMetrics", "application/openmetrics-text;version=1.0.0"),
)


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of the scrapes in one format, in order of size; the processor time of a new page; and
    what a page has.
    """

    name: str
    fresh_s: tuple[float, ...]
    repeated_s: tuple[float, ...]
    processor_s: float
    num_bytes: int
    num_series: int


def make_sample() -> Sample:
    """8 GPUs with 100 processes, of which one on each GPU is a job that grows."""
    devices = tuple(
        DeviceSample(
            index, f"GPU-{index}", "NVIDIA H100 80GB HBM3",
            total_bytes=80 * GIB, used_bytes=60 * GIB, free_bytes=19 * GIB, reserved_bytes=GIB,
            gpu_frac=0.9, memory_frac=0.4, temperature_c=60, slowdown_c=89, shutdown_c=92,
            power_w=600.0, power_limit_w=700.0, sm_clock_mhz=1755, sm_clock_max_mhz=1980,
            memory_clock_mhz=2619, memory_clock_max_mhz=2619, pcie_tx_bytes_per_s=1000,
            pcie_rx_bytes_per_s=2000, throttle_reasons=frozenset({"sw_power_cap"}),
            ecc_corrected=3, ecc_uncorrected=0, processes=tuple(
                ProcessSample(pid, ProcessKind.COMPUTE, GIB, "train.py", "ada", f"{pid:064x}",
                              f"{pid:032x}", str(pid), sm_frac=0.1)
                for pid in range(NUM_PROCESSES) if pid % NUM_GPUS == index
            ),
        )
        for index in range(NUM_GPUS)
    )  # fmt: skip
    return Sample(time.time(), "host", devices, tuple(make_jobs()), (), "580.00.00")


def make_jobs() -> Iterator[Job]:
    """A job on each GPU."""
    peaks = tuple(StepPeak(step, (10 + step) * GIB, 31 * GIB, 0.5) for step in range(64))
    for index in range(NUM_GPUS):
        part = JobDevice(
            0, f"GPU-{index}", 20 * GIB, 26 * GIB, 21 * GIB, GIB, 30 * GIB, 31 * GIB, 3, 1, 7,
            80 * GIB,
        )  # fmt: skip
        yield Job(
            index, 1.0, 2.0, "train.py", (part,), index, NUM_GPUS, "forward", 64, 0.5, 1, peaks
        )


def scrape(exporter: Exporter, accept: str) -> tuple[float, bytes]:
    """How long a scrape takes, its connection included, and the page."""
    host, _, port = exporter.url.split("/")[2].rpartition(":")
    began_s = time.perf_counter()
    with closing(http.client.HTTPConnection(host, int(port), timeout=20)) as connection:
        connection.request("GET", "/metrics", headers={"Accept": accept})
        answer = connection.getresponse()
        body = answer.read()
    if answer.status != 200:
        raise SystemExit(f"a scrape was answered with {answer.status}")
    return time.perf_counter() - began_s, body


def measure(name: str, accept: str, num_scrapes: int) -> Cost:
    """Scrapes samples that nobody has asked for yet, and each of them once more."""
    sample = make_sample()
    fresh, repeated = [], []
    with open_exporter(WatchOptions(listen="0", names=True)) as exporter:
        for turn in range(num_scrapes):
            exporter.exposition.publish(replace(sample, time_s=sample.time_s + turn))
            fresh.append(scrape(exporter, accept)[0])
            seconds, body = scrape(exporter, accept)
            repeated.append(seconds)
        began_s = time.process_time()
        for turn in range(num_scrapes):
            exporter.exposition.publish(replace(sample, time_s=sample.time_s + turn))
            exporter.exposition.page(accept)
        processor_s = (time.process_time() - began_s) / num_scrapes
    lines = body.splitlines()
    num_series = sum(not line.startswith(b"#") for line in lines)
    times = tuple(sorted(fresh)), tuple(sorted(repeated))
    return Cost(name, *times, processor_s, len(body), num_series)


def render(costs: list[Cost], num_scrapes: int) -> str:
    """The report."""
    rows = [
        f"| {cost.name} | {case} | {middle * 1e3:.1f} | {high * 1e3:.1f} | {top * 1e3:.1f} | "
        f"{'yes' if high < GOAL_S else 'no'} |"
        for cost in costs
        for case, times in (("new", cost.fresh_s), ("asked for before", cost.repeated_s))
        for middle, high, top in [
            (times[len(times) // 2], times[int(len(times) * 0.99)], times[-1])
        ]
    ]
    processor = " and ".join(f"{cost.processor_s * 1e3:.0f} ms ({cost.name})" for cost in costs)
    return f"""\
# Time of a scrape of `ullage watch --listen`

{made_by("benchmarks.speed.scrape")}

{NUM_GPUS} GPUs with {NUM_PROCESSES} processes, {NUM_GPUS} of them recorded jobs, with every metric
known and with names: {costs[0].num_series:,} series, {costs[0].num_bytes / 1024:.0f} KiB.
{num_scrapes} scrapes of each kind over HTTP, each by a connection of its own, client and server in
one process. A page is made when a sample is first asked for; a scrape asks no driver. The goal is a
99th percentile under {GOAL_S * 1e3:.0f} ms. The machine's load, other programs included, was
{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores: where the load is above the number of cores, a
scrape waits for a core as well. To make a page takes {processor} of processor time.

| format | sample | median, ms | 99 %, ms | longest, ms | goal met |
|---|---|---|---|---|---|
{chr(10).join(rows)}
"""


def main() -> None:
    """Measures, and writes the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scrapes", type=int, default=500)
    options = parser.parse_args()
    costs = [measure(name, accept, options.scrapes) for name, accept in FORMATS]
    publish("speed-scrape", render(costs, options.scrapes))


if __name__ == "__main__":
    main()
