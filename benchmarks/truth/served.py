"""Servers and steps on real GPUs: starts of vLLM, latencies, times of steps and of kernels."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from typing import Any, Final

from benchmarks.serving import phantom_starts, serve_page, starts
from benchmarks.serving.phantom_starts import lines_of, load_rows, result_of, why_not
from benchmarks.serving.real import page as real
from benchmarks.time import recorded as kernels
from benchmarks.time.published.__main__ import RESULTS as STEPS
from benchmarks.time.published.__main__ import read_results
from benchmarks.time.published.row import read_figures
from benchmarks.time.published.score import compare
from benchmarks.truth.case import FAILED, NOT_RUN, Case, Key, Meaning
from benchmarks.truth.memory import without
from benchmarks.truth.options import BY_NIGHT, Options, now, recorded
from ullage.ground.units import GIB

SERVE: Final = serve_page.HERE / "serve.json"
_KERNELS_TORCH: Final = "2.11.0"
_TIMES: Final = {"ttft_s": "first token", "tpot_s": "each token", "e2e_s": "end to end"}


def estimated_starts(_: Options) -> Iterator[Case]:
    """Bytes for the cache that published starts printed, and `ullage capacity`."""
    for one in (*starts.outcomes(), *starts.outcomes(is_other=True)):
        name, source = one.start["name"], "starts, estimate"
        key = Key(source, name, "cache")
        yield Case.of(key, one.printed_bytes, one.kv_bytes, Meaning.ROOM, now())
        fits = {"fits": True, "does_not_fit": False}.get(one.verdict)
        yield Case.of_verdict(Key(source, name, "verdict"), did_fit=True, fits=fits, run=now())


def simulated_starts(_: Options) -> Iterator[Case]:
    """The same starts by vLLM itself on the phantom."""
    results = json.loads(phantom_starts.RESULTS.read_text(encoding="utf-8"))
    run = recorded("serve-starts")
    for row in load_rows():
        key = Key("starts, phantom", row["name"], "cache")
        why = why_not(row)
        result = None if why else result_of(row, results)
        if result is None:
            yield Case.without(
                key, NOT_RUN, why or "needs vLLM (benchmarks.serving.phantom_starts)"
            )
            continue
        counted, *others = lines_of(row, result, 1.0)
        cache, note = counted.cache, f"a {counted.kind} start"
        if not counted.is_inside and any(line.is_inside for line in others):
            note += "; the source does not say which, and a later one holds it"
        yield Case.of(
            key, round(counted.printed_gib * GIB), (cache.low_bytes, cache.bytes, cache.high_bytes),
            Meaning.ROOM, run, is_inside=counted.is_inside, note=note,
        )  # fmt: skip


def recorded_server(_: Options) -> Iterator[Case]:
    """vLLM on an H100, and the same version on the phantom."""
    results = json.loads(real.PHANTOM.read_text(encoding="utf-8"))
    servers = json.loads(real.SERVERS.read_text(encoding="utf-8"))
    run = recorded("serve-real")
    for start in real.read_starts(servers, results):
        key = Key("starts, H100", start.server["name"], "cache")
        yield Case.of(key, round(start.printed), start.interval, Meaning.ROOM, run)
    for served in real.read_served(servers, results):
        for field, what in _TIMES.items():
            key = Key("latencies, H100", f"{served.server} {served.load.name}", what)
            truth = getattr(served.load, field)
            yield Case.of(key, truth, (None, served.row[field], None), Meaning.NEITHER, run)


def closed_loops(_: Options) -> Iterator[Case]:
    """Published closed loops, and `ullage serve`."""
    results = json.loads(SERVE.read_text(encoding="utf-8"))
    run = recorded("serve")
    served = {
        _loop(each.row): each
        for name in serve_page.SERVERS
        if name in results
        for each in serve_page.compared(results[name])
    }
    with serve_page.LOOPS.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            each = served.get(_loop(row))
            for what, field in (("first token", "ttft"), ("each token", "tpot")):
                key = Key("latencies, published", _loop(row), what)
                if each is None:
                    yield Case.without(key, NOT_RUN, "needs vLLM (benchmarks.serving.serve)")
                    continue
                truth, ours = float(row[f"{field}_ms"]) / 1e3, getattr(each, field) / 1e3
                yield Case.of(key, truth, (None, ours, None), Meaning.NEITHER, run)


def _loop(row: dict[str, str]) -> str:
    """A closed loop in words."""
    return "{model}, {users} users, {prompt} + {output} tokens".format(**row)


def steps(options: Options) -> Iterator[Case]:
    """Published times of a training step, and `ullage run --time`."""
    figures, predictions = tuple(read_figures()), read_results(STEPS)
    compared = {row.figure.name: row for row in compare(figures, predictions)}
    run = now() if options.has_programs else recorded("time")
    for figure in figures:
        key = Key("steps, published", figure.name, "step")
        if (row := compared.get(figure.name)) is None:
            made = predictions.get(figure.name)
            yield Case.without(
                key, FAILED if made else NOT_RUN, made.error if made else "needs --programs"
            )
            continue
        ours = (row.low_s, row.likely_s, row.high_s)
        yield Case.of(key, figure.seconds, ours, Meaning.NEITHER, run)


def kernel_times(options: Options) -> Iterator[Case]:
    """Steps and kernels of workloads on an H200, and the clock."""
    truth = json.loads(kernels.TRUTH.read_text(encoding="utf-8"))
    python = options.python_of(_KERNELS_TORCH)
    for name, row in truth.items():
        keys = [Key("steps, H200", name, what) for what in ("step", "kernels of a step")]
        if python is None or not options.is_night:
            why = options.needs(_KERNELS_TORCH) if options.is_night else BY_NIGHT
            yield from without(keys, NOT_RUN, why)
            continue
        told = kernels.predict(name, python.absolute(), options.work)
        if told is None:
            yield from without(keys, FAILED, "the program did not run")
            continue
        for key, real_s, ours_s in zip(keys, _seconds(row), _seconds(told), strict=True):
            yield Case.of(key, real_s, (None, ours_s, None), Meaning.NEITHER, now())


def _seconds(times: dict[str, Any]) -> tuple[float, float]:
    """Of a step, and of its kernels."""
    return times["median_step_seconds"], kernels.busy_ms(times["kernels"]) / 1e3
