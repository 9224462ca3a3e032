"""Which tests run, what each costs, and in which order: the hooks of tests/conftest.py.

    pytest                      what `make test` runs: neither `slow` nor `nightly`
    pytest --tier all           `slow` tests too: all that `make test-all` runs
    pytest --tier nightly       what is marked `nightly`, and nothing else

tests/seconds.csv has the processor seconds of each case when they were last written (--seconds
write). They keep the cores busy to the end, and hold `make test` to its budget: a case may take
CASE_S, a file FILE_S, and each case has its entry.
"""

from __future__ import annotations

import csv
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.meter import processor_s

SECONDS = Path(__file__).with_name("seconds.csv")
CASE_S = 5.0
FILE_S = 60.0
# What a single reading may be off by: two tests on one core, a cold cache of the file system.
NOISE = 2.0
# A failure is shown in its first and last lines.
HEAD, TAIL = 6, 12
MISSING_SHOWN = 15
PROPERTY = "processor_s"
BEGUN = pytest.StashKey[float]()
SEEN = pytest.StashKey[dict[str, float]]()
OUTCOMES = pytest.StashKey[dict[str, str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """--tier, --only, --seconds and --outcomes."""
    group = parser.getgroup("tiers of tests")
    group.addoption("--tier", choices=("test", "all", "nightly"), default="test")
    group.addoption("--only", type=Path, help="a file with the cases to run, one a line")
    group.addoption(
        "--seconds", choices=("check", "write"), help="hold the cases to, or write, seconds.csv"
    )
    group.addoption("--outcomes", type=Path, help="a file that gets the outcome of each case")


def tier_of(item: pytest.Item) -> str:
    """The first of the tiers that runs a case.

    `@pytest.mark.slow(but=("a", "b"))` leaves the cases of these ids in `make test`, and
    `@pytest.mark.slow(only=("a",))` all others.
    """
    if item.get_closest_marker("nightly"):
        return "nightly"
    marker = item.get_closest_marker("slow")
    if marker is None:
        return "test"
    callspec = getattr(item, "callspec", None)
    case = callspec.id if callspec is not None else ""
    is_slow = case not in marker.kwargs.get("but", ()) and case in marker.kwargs.get(
        "only", (case,)
    )
    return "all" if is_slow else "test"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves the cases of the tier, the files that take longest first."""
    tier, listed = config.getoption("--tier"), config.getoption("--only")
    wanted = {"test": {"test"}, "all": {"test", "all"}, "nightly": {"nightly"}}[tier]
    only = None if listed is None else set(listed.read_text(encoding="utf-8").splitlines())
    left = [
        item for item in items
        if tier_of(item) not in wanted or (only is not None and item.nodeid not in only)
    ]  # fmt: skip
    config.hook.pytest_deselected(items=left)
    seconds = read_seconds()
    of_file: dict[str, float] = defaultdict(float)
    away = set(left)
    items[:] = [item for item in items if item not in away]
    for item in items:
        of_file[file_of(item.nodeid)] += seconds.get(item.nodeid, CASE_S)
    items.sort(key=lambda item: -of_file[file_of(item.nodeid)])


def file_of(case: str) -> str:
    """The file of a case."""
    return case.partition("::")[0]


def read_seconds() -> dict[str, float]:
    """The processor seconds of each case that has an entry."""
    if not SECONDS.exists():
        return {}
    with SECONDS.open(encoding="utf-8", newline="") as file:
        return {case: float(seconds) for seconds, case in csv.reader(file)}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Notes what the process and all that it started had taken before the case."""
    item.stash[BEGUN] = processor_s()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[pytest.TestReport]:
    """The last report of a case carries its processor seconds; a failure is cut to a screen."""
    report: pytest.TestReport = yield
    if call.when == "teardown":
        report.user_properties.append((PROPERTY, processor_s() - item.stash[BEGUN]))
    if report.failed and not item.config.getoption("verbose"):
        report.longrepr = _cut(report.longreprtext)
        report.sections = [(name, _cut(text)) for name, text in report.sections]
    return report


def _cut(text: str) -> str:
    lines = text.splitlines()
    if len(lines) <= HEAD + TAIL:
        return text
    left_out = f"... {len(lines) - HEAD - TAIL} lines (all of them with -v)"
    return "\n".join([*lines[:HEAD], left_out, *lines[-TAIL:]])


class Ledger:
    """What the cases came to and took, in the process that has all reports."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.outcomes: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        self.missing: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keeps the worst outcome of a case's phases, and its seconds."""
        if report.outcome != "passed" or report.nodeid not in self.outcomes:
            self.outcomes[report.nodeid] = report.outcome
        for name, value in report.user_properties:
            if name == PROPERTY:
                self.seconds[report.nodeid] = value

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Writes what was asked for; a case without an entry, or above the budget, fails."""
        where = self._config.getoption("--outcomes")
        if where is not None:
            lines = (f"{outcome},{case}\n" for case, outcome in sorted(self.outcomes.items()))
            where.write_text("".join(lines), encoding="utf-8")
        mode = self._config.getoption("--seconds")
        if mode == "write":
            tier, only = self._config.getoption("--tier"), self._config.getoption("--only")
            is_whole = tier == "all" and only is None
            write_seconds(self.seconds, self.outcomes if is_whole else {})
        elif mode == "check" and session.exitstatus == pytest.ExitCode.OK:
            self.missing = sorted(self._passed().keys() - read_seconds().keys())
            if self.missing or over_budget(self._passed()):
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """The cases that exceed their entry most, and what breaks the budget."""
        if self._config.getoption("--seconds") != "check":
            return
        say: Callable[[str], None] = terminalreporter.write_line
        entries = read_seconds()
        both = [(now, entries[case], case) for case, now in self.seconds.items() if case in entries]
        grown = sorted(((now - entry, now, case) for now, entry, case in both), reverse=True)
        total = sum(self.seconds.values())
        say(
            f"{total:.0f} s of processor time in {len(self.seconds)} cases; above their entry most:"
        )
        for more, now, case in grown[:10]:
            say(f"  {more:+6.2f} s, now {now:5.2f} s  {case}")
        for case in self.missing[:MISSING_SHOWN]:
            say(f"no entry in tests/seconds.csv: {case}")
        if self.missing:
            say(f"{len(self.missing)} cases have no entry: `make seconds` writes them")
        for line in over_budget(self._passed()):
            say(line)

    def _passed(self) -> dict[str, float]:
        """The seconds of the cases that passed: what is skipped here may take long elsewhere."""
        return {
            case: seconds
            for case, seconds in self.seconds.items()
            if self.outcomes[case] == "passed"
        }


def over_budget(seconds: dict[str, float]) -> list[str]:
    """What takes more than a case, or a file, of `make test` may: by its entry, or far more today.

    It is to be made faster, or marked `slow`.
    """
    entries = read_seconds()
    lines = []
    for kind, limit in (("case", CASE_S), ("file", FILE_S)):
        sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for case, now in seconds.items():
            name = case if kind == "case" else file_of(case)
            sums[name][0] += entries.get(case, 0.0)
            sums[name][1] += now
        lines += [
            f"a {kind} may take {limit:.0f} s of processor time, and {name} took {now:.1f} s "
            f"(entry: {entry:.1f} s)"
            for name, (entry, now) in sums.items()
            if entry > limit or now > limit * NOISE
        ]
    return lines


def write_seconds(seconds: dict[str, float], collected: Collection[str]) -> None:
    """Writes the entries of the cases that ran.

    Args:
        seconds: by case.
        collected: all cases of the files that ran, so that those that are gone go; empty: unknown.
    """
    files = {file_of(case) for case in collected}
    entries = read_seconds() | seconds
    with SECONDS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        for case, value in sorted(entries.items()):
            if case in collected or file_of(case) not in files:
                writer.writerow((f"{value:.2f}", case))


def pytest_configure(config: pytest.Config) -> None:
    """The process that has all reports keeps the ledger; with pytest-xdist it runs no cases."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        config.pluginmanager.register(Ledger(config), "ledger")
