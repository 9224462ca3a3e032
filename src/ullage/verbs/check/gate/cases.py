"""Runs the cases of scenarios in parallel, as many as memory and processors allow. Cases whose
result is in the cache are not run again.

    with run_cases(cases, settings) as results:
        results[0].report.verdict, results[0].figures.measured
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ullage.explain.stops import describe_stop
from ullage.explain.verdict import Verdict
from ullage.ground.errors import SpecError
from ullage.ground.protocol.option import share
from ullage.ground.version import __version__
from ullage.log.model import StepKind
from ullage.operate.serve.run import ENTRANCE
from ullage.players.inside.requests.requests import read_requests
from ullage.players.phantom.client import Service, find_free_port
from ullage.players.phantom.device import choose_device
from ullage.players.phantom.http_requests import Endpoint
from ullage.players.phantom.launch import run_directory
from ullage.players.phantom.program import resolve_program
from ullage.players.phantom.rank import choose_ranks
from ullage.search.runs.job import ALLOCATOR_VARIABLES, Job, make_job, make_options
from ullage.search.runs.parallel import ParallelRuns
from ullage.search.runs.server import run_server
from ullage.search.runs.survey import Survey
from ullage.search.runs.variables import fill_in
from ullage.verbs.check.gate.cache import Cache, CaseFigures
from ullage.verbs.check.gate.dependencies import digest_case
from ullage.verbs.check.gate.estimated import estimate_case
from ullage.verbs.check.gate.figures import measure
from ullage.verbs.check.gate.inputs import digest_inputs, read_inputs
from ullage.verbs.check.gate.lock import Key
from ullage.verbs.check.gate.scenario import PORT_NAME, Case
from ullage.verbs.check.gate.serving import run_served
from ullage.verbs.run.options import DISTINCT, RunOptions

if TYPE_CHECKING:
    from ullage.explain.run import RunReport
    from ullage.explain.snapshot import SnapshotReport


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the cases' runs.

    Attributes:
        python: an interpreter instead of that of each scenario.
        cache: where results are looked up and stored; None: no cache is used.
        on_progress: called with a line, such as "3 of 8 runs".
        on_failure: called with the last output of a program that failed.
    """

    python: str | None = None
    cache: Cache | None = None
    on_progress: Callable[[str], None] | None = None
    on_failure: Callable[[str], None] | None = None


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of a case.

    Attributes:
        case: the case that was run, or found in the cache.
        total_bytes: the memory of its device; None where it is unlimited.
        report: of the run; None where the result is from the cache.
        figures: the memory that each device needed; empty where none was used.
        output: the last lines of a program that failed.
        problem: why a server did not start; "": it did, or it is none.
    """

    case: Case
    total_bytes: int | None
    report: RunReport | None
    figures: CaseFigures
    output: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A case that is ready to run: its job, and the key of its result in the cache."""

    case: Case
    job: Job
    key: str
    directory: Path

    @property
    def notes(self) -> Path:
        """Where its processes note what they read."""
        return self.directory / "inputs"

    @property
    def is_server(self) -> bool:
        """True if requests are sent to it."""
        return self.case.scenario.replay is not None and self.case.scenario.replay.url is not None


@contextmanager
def run_cases(cases: Sequence[Case], settings: Settings) -> Iterator[list[CaseResult]]:
    """The results of cases, in their order; the snapshots exist until the context ends.

    Raises:
        SpecError: a program is not there, or an option is not possible.
        EnvironmentProblem: no torch for CUDA there, or one that this ullage does not know.
        KeyboardInterrupt: the user stopped it.
    """
    with run_directory() as directory:
        places = {case.name: directory / str(number) for number, case in enumerate(cases)}
        results: dict[str, CaseResult | None] = dict.fromkeys(places)
        prepared = [
            _prepare(case, places[case.name], settings)
            for case in cases
            if case.scenario.trained is None
        ]
        for case in cases:
            if case.scenario.trained is not None:
                results[case.name] = _estimate(case, places[case.name])
        for each in prepared:
            answer = _find if each.case.scenario.serving is None else _serve
            results[each.case.name] = answer(each, settings)
        unknown = [each for each in prepared if results[each.case.name] is None]
        began_ns = time.time_ns()
        for each, run, output in _run_all(unknown, settings):
            results[each.case.name] = _conclude(each, run, output, began_ns, settings)
        yield [result for result in results.values() if result is not None]


def _prepare(case: Case, directory: Path, settings: Settings) -> _Prepared:
    """Checks a case before anything runs; errors name its scenario."""
    scenario = case.scenario
    python = settings.python or scenario.python
    numbers = scenario.ranks if isinstance(scenario.ranks, tuple) else (0,)
    ranks = (
        None
        if scenario.world_size is None
        else choose_ranks(numbers, scenario.world_size, scenario.local_world_size)
    )
    (directory / "inputs").mkdir(parents=True)
    try:
        options = replace(
            make_options(share(RunOptions, scenario, program=_words(case))),
            has_snapshot=True,
            rank=None if ranks is None else ranks[0],
            mail=None if ranks is None else directory,
            num_devices=scenario.num_devices,
            variables=case.scenario.env,
            timeout_s=scenario.timeout_s,
            inputs=directory / "inputs",
        )
        device = choose_device(case.gpu, memory=scenario.memory, capability=scenario.capability)
        job = make_job(
            _words(case),
            device=device,
            python=python,
            options=options,
            directory=scenario.directory,
        )
    except SpecError as error:
        raise SpecError(f"scenario {case.name!r} (line {scenario.line}): {error}") from None
    # What an engine depends on besides its files is not known, so a server always runs.
    has_key = settings.cache is not None and scenario.serving is None
    key = digest_case(case, job.program, job.device, job.build) if has_key else ""
    return _Prepared(case, job, key, directory)


def _estimate(case: Case, directory: Path) -> CaseResult:
    """The result of a model and a recipe; errors name its scenario."""
    directory.mkdir(parents=True)
    try:
        report, figures = estimate_case(case, directory)
    except SpecError as error:
        raise SpecError(f"scenario {case.name!r} (line {case.scenario.line}): {error}") from None
    total = None if report.is_unlimited else report.gpu.total_bytes
    return CaseResult(case, total, report, figures)


def _words(case: Case) -> tuple[str, ...]:
    """The command that is run, or the one that calls the function."""
    replay = case.scenario.replay
    if case.scenario.serving is not None:
        return (str(ENTRANCE),)  # whose interpreter is looked at; `serve` has its own words
    if replay is None or replay.function is None:
        return case.scenario.command
    file = str(case.scenario.directory / replay.file)
    words = replay.function, file, replay.users, str(replay.limit or 0)
    return ("-m", "ullage.players.inside.requests.calls", *words)


def _find(prepared: _Prepared, settings: Settings) -> CaseResult | None:
    cached = None if settings.cache is None else settings.cache.find(prepared.key)
    total = _total_bytes(prepared.job)
    return None if cached is None else CaseResult(prepared.case, total, None, cached)


def _total_bytes(job: Job) -> int | None:
    return None if job.device.is_unlimited else job.device.gpu.total_bytes


def _run_all(
    cases: Sequence[_Prepared], settings: Settings
) -> Iterator[tuple[_Prepared, RunReport, str]]:
    """Every run with the last output of a program that failed: those of one process at once, each
    server, and each job of several ranks, by itself.
    """
    alone = [case for case in cases if case.job.options.rank is None and not case.is_server]
    if alone:
        snapshots = [case.directory / "run.pickle" for case in alone]
        runs = ParallelRuns(
            [case.job for case in alone], settings.on_progress, settings.on_failure, snapshots
        )
        runs.run_all()
        if runs.was_interrupted:
            raise KeyboardInterrupt
        for number, (case, run) in enumerate(zip(alone, runs.results, strict=True)):
            if run is not None:
                yield case, run, runs.outputs.get(number, "")
    for case in cases:
        if case.is_server:
            yield case, *_run_server(case, settings)
        elif case.job.options.rank is not None:
            yield case, *_run_ranks(case, settings)


def _run_server(prepared: _Prepared, settings: Settings) -> tuple[RunReport, str]:
    case, replay = prepared.case, prepared.case.scenario.replay
    if replay is None or replay.url is None:
        raise ValueError(f"{case.name} is not a server")
    port_values = {PORT_NAME: str(find_free_port())}
    path = case.scenario.directory / replay.file
    service = Service(
        Endpoint.parse(fill_in(replay.url, port_values)),
        read_requests(path, replay.limit),
        path.parent,
        users=int(replay.users),
        ready=replay.ready,
        ready_timeout_s=replay.ready_timeout_s,
        timeout_s=replay.timeout_s,
        fields=replay.fields,
    )
    words = [fill_in(word, port_values) for word in case.scenario.command]
    variables = {name: fill_in(text, port_values) for name, text in case.scenario.env.items()}
    job = replace(
        prepared.job,
        program=resolve_program(words, prepared.job.program.python, case.scenario.directory),
        options=replace(prepared.job.options, variables=variables),
    )
    run, output = run_server(job, service, prepared.directory / "run.pickle")
    if settings.on_progress is not None:
        settings.on_progress(f"{case.name}: {len(service.requests)} requests")
    is_failed = run.verdict is Verdict.FAILED
    if is_failed and settings.on_failure is not None:
        settings.on_failure(output)
    return run, output if is_failed else ""


def _serve(prepared: _Prepared, settings: Settings) -> CaseResult:
    case = prepared.case
    result = run_served(case, settings.python or case.scenario.python)
    if settings.on_progress is not None:
        settings.on_progress(f"{case.name}: served")
    total, report = _total_bytes(prepared.job), result.report
    if report is None:
        figures = CaseFigures({}, (), 0.0)
        return CaseResult(case, total, None, figures, problem=result.problem)
    measured = {
        name: replace(
            each,
            entry=replace(
                each.entry, served=result.figures, key=replace(each.entry.key, engine=result.engine)
            ),
        )
        for name, each in measure(
            report, [], lambda rank: _key(prepared, rank), case.scenario.directory.name
        ).items()
    }
    figures = CaseFigures(measured, report.warnings, report.program.wall_s)
    return CaseResult(case, total, report, figures)


def _run_ranks(prepared: _Prepared, settings: Settings) -> tuple[RunReport, str]:
    ranks = prepared.case.scenario.ranks
    outputs: list[str] = []

    def note(output: str) -> None:
        outputs.append(output)
        if settings.on_failure is not None:
            settings.on_failure(output)

    survey = Survey(prepared.job, settings.on_progress, note, prepared.directory)
    report = survey.report(None if ranks == DISTINCT else [*map(int, ranks)])
    return report, "\n".join(outputs)


def _conclude(
    prepared: _Prepared, report: RunReport, output: str, began_ns: int, settings: Settings
) -> CaseResult:
    """The result of a run; a reliable one is stored in the cache."""
    measured = measure(
        report,
        [_explain(process.snapshot) for process in report.processes],
        lambda rank: _key(prepared, rank),
        prepared.case.scenario.directory.name,
    )
    stop = report.stop
    warnings = report.warnings
    if stop is not None and stop.kind is StepKind.INFERENCE:
        warnings += (describe_stop(stop),)
    result = CaseFigures(measured, warnings, report.program.wall_s)
    if settings.cache is not None and measured and report.verdict is Verdict.FITS:
        inputs = read_inputs(prepared.notes)
        digests = None if inputs is None else digest_inputs(inputs, began_ns)
        if digests is not None:
            settings.cache.keep(prepared.key, result, digests)
    return CaseResult(prepared.case, _total_bytes(prepared.job), report, result, output)


def _explain(snapshot: str | None) -> SnapshotReport | None:
    from ullage.explain.snapshot import explain_snapshot
    from ullage.log.snapshot_reader import read_snapshot

    return None if snapshot is None else explain_snapshot(read_snapshot(Path(snapshot)))


def _key(prepared: _Prepared, rank: int | None) -> Key:
    """The conditions under which the figures of a run were measured."""
    job, case = prepared.job, prepared.case
    environment = os.environ | dict(case.scenario.env)
    settings = (environment.get(name) for name in ALLOCATOR_VARIABLES)
    world_size = case.scenario.world_size
    return Key(
        torch=job.build.version,
        cuda=job.build.cuda,
        gpu="unlimited" if job.device.is_unlimited else job.device.gpu.slug,
        ullage=__version__,
        allocator=case.scenario.alloc_conf or next(filter(None, settings), ""),
        command=case.text,
        ranks="" if world_size is None or rank is None else f"rank {rank} of {world_size}",
    )
