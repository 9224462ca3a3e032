"""Serves traffic with a real engine on the phantom, in virtual time: what `ullage serve` and
`ullage.serve_traffic` are.

    run = ullage.serve_traffic(["vllm", "serve", "llama-3.1-8b"], traffic="azure-conv:duration=1h",
                               gpu="h100-80gb", python="vllm/bin/python", slo="ttft=1s,tpot=50ms")
    print(run.text())
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from ullage.answers.verb_answer import PageAnswer
from ullage.ground.errors import SpecError
from ullage.ground.protocol.option import takes
from ullage.ground.protocol.plain import Mark
from ullage.verbs.serve.options import ServeOptions
from ullage.verbs.smallest.options import SmallestOptions

if TYPE_CHECKING:
    from ullage.answers.block_kinds import Blocks
    from ullage.operate.serve.measures import Measures
    from ullage.operate.serve.outcome import Outcome
    from ullage.operate.serve.report import ServeReport


GPU = "h100-80gb"
"""The GPU of a server where none is named."""


@dataclass(frozen=True, slots=True)
class ServedTraffic(PageAnswer):
    """A finished run of a server."""

    report: Annotated[ServeReport, Mark.FLAT]

    @property
    def measures(self) -> Measures:
        """Percentiles, throughput, goodput, preemptions."""
        return self.report.measures

    @property
    def outcome(self) -> Outcome:
        """The outcome of each request, as columns."""
        return self.report.served.outcome

    @property
    def exit_code(self) -> int:
        """0: every request has its answer, or was refused; 1: some can never have one."""
        return 1 if self.outcome.num_stuck else 0

    @property
    def subject(self) -> str:
        """The title of the page: the server's command."""
        return " ".join(self.report.served.command)

    def blocks(self, *, full: bool = False) -> Blocks:
        """The blocks of its report."""
        from ullage.verbs.serve.text import serve_blocks

        return serve_blocks(self.report)


@takes(ServeOptions)
def serve_traffic(options: ServeOptions) -> ServedTraffic:
    """Runs a server on the phantom with some traffic, in virtual time.

    Raises:
        SpecError: the command, the traffic or the objective is not possible.
        EnvironmentProblem: the engine did not start, or failed.
    """
    from ullage.operate.serve.curve import make_curve
    from ullage.operate.serve.host_time import parse_host_time
    from ullage.operate.serve.measures import measure
    from ullage.operate.serve.report import ServeReport
    from ullage.operate.serve.run import check_command, serve
    from ullage.operate.serve.slo import parse_slo
    from ullage.operate.serve.traffic import load_traffic

    check_command(options.program)
    objective = None if options.slo is None else parse_slo(options.slo)
    host_time, python = options.host_time, options.python
    served = serve(
        options.program, load_traffic(traffic_of(options)), gpu=options.gpu or GPU,
        python=None if python is None else os.fspath(python),
        stdout_to_stderr=options.stdout_to_stderr, loads=options.loads,
        host=None if host_time is None else parse_host_time(host_time), is_cached=options.cached,
    )  # fmt: skip
    curve = make_curve(served.by_load, objective) if served.by_load else None
    report = ServeReport(served, measure(served.outcome, objective), objective, curve)
    return ServedTraffic(report)


def traffic_of(options: ServeOptions | SmallestOptions) -> str:
    """The traffic; raises SpecError where none is named."""
    if options.traffic is None:
        raise SpecError(
            "no traffic: add --traffic FILE, or such as --traffic poisson:rate=2,prompt=1000,"
            "output=200"
        )
    return options.traffic
