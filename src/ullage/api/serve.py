"""Serves traffic with a real engine on the phantom, in virtual time: `ullage serve` and
`ullage.serve_traffic`.

    run = ullage.serve_traffic(["vllm", "serve", "llama-3.1-8b"], "azure-conv:duration=1h",
                               gpu="h100-80gb", python="vllm/bin/python", slo="ttft=1s,tpot=50ms")
    run.measures.goodput_frac
    print(run.text())
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ullage.serve.measures import Measures
    from ullage.serve.outcome import Outcome
    from ullage.serve.report import ServeReport

__all__ = ["ServedTraffic", "serve_traffic"]


@dataclass(frozen=True, slots=True)
class ServedTraffic:
    """A finished run of a server."""

    report: ServeReport

    @property
    def measures(self) -> Measures:
        """Percentiles, throughput, goodput, preemptions."""
        return self.report.measures

    @property
    def outcome(self) -> Outcome:
        """What became of each request, as columns."""
        return self.report.served.outcome

    @property
    def exit_code(self) -> int:
        """0: every request has its answer, or was refused; 1: some can never have one."""
        return 1 if self.outcome.num_stuck else 0

    @property
    def document(self) -> dict[str, Any]:
        """The document, schema "ullage.serve/1"."""
        from ullage.report.document.serve import serve_document

        return serve_document(self.report)

    def text(self, width: int = 80) -> str:
        """The report for people, without colour."""
        from ullage.report.text.serve import render_serve

        return render_serve(self.report, width)


def serve_traffic(
    command: Sequence[str],
    traffic: str,
    *,
    gpu: str,
    python: str | os.PathLike[str] | None = None,
    slo: str | None = None,
    stdout_to_stderr: bool = False,
) -> ServedTraffic:
    """Runs a server on the phantom with some traffic, in virtual time.

    Args:
        command: `vllm serve MODEL ...`; the model is found as by `ullage.estimate_serving`.
        traffic: a file of a known trace, or a generator such as "poisson:rate=2,prompt=1000,
            output=200,duration=10m".
        gpu: a GPU of the catalogue.
        python: the interpreter of an environment with the engine; None: this one.
        slo: such as "ttft=1s,tpot=50ms".
        stdout_to_stderr: the engine's own output goes to stderr.

    Raises:
        SpecError: the command, the traffic or the objective is not possible.
        EnvironmentProblem: the engine did not start, or failed.
    """
    from ullage.serve.measures import measure
    from ullage.serve.report import ServeReport
    from ullage.serve.run import check_command, serve
    from ullage.serve.slo import parse_slo
    from ullage.serve.traffic import load_traffic

    check_command(command)
    objective = None if slo is None else parse_slo(slo)
    served = serve(
        command, load_traffic(traffic), gpu=gpu,
        python=None if python is None else os.fspath(python), stdout_to_stderr=stdout_to_stderr,
    )  # fmt: skip
    report = ServeReport(served, measure(served.outcome, objective), objective)
    return ServedTraffic(report)
