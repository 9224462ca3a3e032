"""Measures the GPU of this machine, so that plans have its times: `ullage calibrate`.

    rates = calibrate(python="ENVIRONMENT/bin/python")
    rates.document

A program (programs/measure_rates.py) runs in the user's torch for about a minute; from what it saw
of each kind of work in several sizes follow a steady rate and a time to begin (gpus/rates.py).
"""

from __future__ import annotations

import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ullage.errors import DeviceError, EnvironmentProblem
from ullage.gpus.catalog import find_by_device
from ullage.gpus.peaks import flops_per_s, link_bytes_per_s, peer_bytes_per_s
from ullage.gpus.rates import Rates, Sample, Speed, fit_speed
from ullage.phantom.torch_build import find_version
from ullage.programs import program_path
from ullage.protocol.variables import PHANTOM

_PROGRAM = program_path("measure_rates")
_LIMIT_S = 900
_NEEDED = ("bfloat16", "float16", "tf32", "fp32")


def calibrate(python: str | None = None) -> Rates:
    """Measures the first GPU of this machine; all of them where they send to each other.

    Args:
        python: the interpreter of the environment whose torch is used; None: this one.

    Raises:
        EnvironmentProblem: there is no torch.
        DeviceError: there is no GPU, it is the phantom, or measuring failed.
        SpecError: the catalogue does not have this GPU.
    """
    interpreter = python or sys.executable
    if os.environ.get(PHANTOM):
        raise DeviceError(
            "this GPU is a phantom: its kernels do nothing, and times on it mean nothing; run "
            "`ullage calibrate` by itself on a machine with a GPU"
        )
    find_version(interpreter)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "found.json")
        command = [interpreter, str(_PROGRAM), "cuda", str(path)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_LIMIT_S, check=False
            )
        except OSError as error:
            raise EnvironmentProblem(
                f"{interpreter!r} cannot be started: {error.strerror or error}"
            ) from None
        except subprocess.TimeoutExpired:
            raise DeviceError(
                f"the GPU was not measured within {_LIMIT_S} s; is another job running on it?"
            ) from None
        if done.returncode:
            message = (done.stderr.strip().splitlines() or ["without a word"])[-1]
            raise DeviceError(
                f"the GPU could not be measured: {message}; check it with `nvidia-smi`, and name "
                "an environment with its torch: --python DIR/bin/python"
            )
        return read_measurements(json.loads(path.read_text(encoding="utf-8")))


def read_measurements(measurements: Mapping[str, Any], date: str | None = None) -> Rates:
    """The rates that follow from what measure_rates.py wrote.

    Raises:
        SpecError: the catalogue does not have this GPU.
        DeviceError: a rate that a plan's time depends on was not measured.
    """
    gpu = find_by_device(measurements["device"], measurements["total_bytes"])
    kinds: dict[tuple[str, str], list[Sample]] = {}
    for kind, of, work, seconds in measurements["samples"]:
        kinds.setdefault((kind, of), []).append(Sample(work, seconds))
    skipped: dict[str, str] = dict(measurements["skipped"])
    products = {of: kinds[kind, of] for kind, of in kinds if kind == "matmul"}
    missing = [precision for precision in _NEEDED if precision not in products]
    missing += [kind for kind in ("memory", "link", "launch") if kind in skipped]
    if missing:
        why = "; ".join(f"{what}: {reason}" for what, reason in skipped.items())
        raise DeviceError(f"{', '.join(missing)} could not be measured here ({why})")

    def speed(kind: str, stated_per_s: float, *of: str) -> Speed:
        return fit_speed([sample for name in of for sample in kinds[kind, name]], stated_per_s)

    launches = [sample.seconds for sample in kinds["launch", ""]]
    stated = flops_per_s(gpu, "bfloat16")
    return Rates(
        gpu=gpu.slug,
        device=measurements["device"],
        driver=measurements["driver"],
        torch=measurements["torch"],
        date=date or datetime.datetime.now(datetime.UTC).date().isoformat(),
        matmul={of: fit_speed(product, flops_per_s(gpu, of)) for of, product in products.items()},
        attention={of: speed("attention", stated, of) for kind, of in kinds if kind == "attention"},
        memory=speed("memory", gpu.bandwidth_bytes_per_s, "copy", "add"),
        to_device=speed("to_device", link_bytes_per_s(gpu), ""),
        to_host=speed("to_host", link_bytes_per_s(gpu), ""),
        peers=speed(
            "peers", peer_bytes_per_s(gpu, measurements["num_gpus"]), "all_reduce", "all_gather"
        )
        if ("peers", "all_reduce") in kinds
        else None,
        launch_s=statistics.median(launches),
        skipped=skipped,
    )
