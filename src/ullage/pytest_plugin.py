"""Limits the GPU memory of tests, without a GPU; pytest loads this if ullage is installed.

    @pytest.mark.gpu_memory("1.5 GiB", growth="0 B/iter", gpu="a10g")
    def test_training(gpu_memory):
        with gpu_memory.phase("forward"):
            ...

A marked test runs on a phantom GPU, in its own forked process; on a machine with a real GPU it is
measured there. Tests without the mark are unchanged. Sessions without a marked test import only
this file and the options of ullage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pytest

from ullage.ground.errors import SpecError
from ullage.verbs.testing.limits import Limits, parse_limits
from ullage.verbs.testing.settings import IS_CHILD, OPTIONS, add_options, read_options

if TYPE_CHECKING:
    from ullage.verbs.testing.meter import GpuMemory
    from ullage.verbs.testing.phantom_run import PhantomRuns

_MARK = "gpu_memory"
_MARK_HELP = (
    "gpu_memory(limit, *, reserved, growth, leak, gpu): run the test on a phantom GPU, or measure "
    "it on a real one, and fail it where it takes more than the limits, such as '1.5 GiB'"
)
_LIMITS = pytest.StashKey[Limits]()
_RUNS: pytest.StashKey[PhantomRuns] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declares the options."""
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Declares the marker, and reads the options."""
    config.addinivalue_line("markers", _MARK_HELP)
    options = config.stash[OPTIONS] = read_options(config)
    is_for_another = IS_CHILD in config.stash or hasattr(config, "workerinput")
    if (options.is_reporting or options.is_updating) and not is_for_another:
        from ullage.verbs.testing.summary import Summary

        config.pluginmanager.register(Summary(options), "ullage-summary")


@pytest.fixture
def gpu_memory(request: pytest.FixtureRequest) -> GpuMemory:
    """The GPU memory of this test: `phase`, `iterations`, `peak`, `reserved_peak`, `by_module`."""
    from ullage.verbs.testing.measuring import memory_of

    return memory_of(request.node)


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Reads the markers of the collected tests; an invalid one is a collection error."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    problems = [
        problem
        for item in report.result or ()
        if isinstance(item, pytest.Item)
        for problem in _read_mark(item)
    ]
    if problems and report.passed:
        report.outcome, report.longrepr = "failed", "\n".join(problems)
        report.result = []


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Reads the markers again, because other plugins may have added some after the collection."""
    problems = [problem for item in items for problem in _read_mark(item)]
    if problems:
        raise pytest.UsageError("\n".join(problems))


def _read_mark(item: pytest.Item) -> Iterator[str]:
    """Stores the limits of a test; yields the problems with them."""
    mark = item.get_closest_marker(_MARK)
    if mark is None:
        if _MARK in getattr(item, "fixturenames", ()):
            item.stash[_LIMITS] = Limits()
        return
    try:
        item.stash[_LIMITS] = parse_limits(mark.args, mark.kwargs)
    except SpecError as error:
        path, line, name = item.location
        yield f"{path}:{(line or 0) + 1}: @pytest.mark.{_MARK} of {name}: {error}"


def _is_measured_here(item: pytest.Item) -> bool:
    return _LIMITS in item.stash and item.config.stash[OPTIONS].runs_here


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Runs a marked test on the phantom if it cannot be measured in this process."""
    options = item.config.stash[OPTIONS]
    if _LIMITS not in item.stash or options.runs_here or not options.has_phantom:
        return None
    from ullage.verbs.testing.phantom_run import PhantomRuns

    config = item.config
    if _RUNS not in config.stash:
        files = dict.fromkeys(test.path for test in item.session.items if _LIMITS in test.stash)
        config.stash[_RUNS] = PhantomRuns(config, list(files))
    config.stash[_RUNS].run(item, nextitem, options.gpu_of(item.stash[_LIMITS]))
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Starts the measurement before any fixture."""
    if _is_measured_here(item):
        from ullage.verbs.testing import measuring

        measuring.begin(item)
    elif _LIMITS in item.stash:
        pytest.skip("a phantom GPU needs Linux, and there is no other here")


@pytest.hookimpl(trylast=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Checks the limits after a test has passed."""
    if _is_measured_here(item):
        from ullage.verbs.testing import measuring

        measuring.judge(item, item.stash[_LIMITS], item.config.stash[OPTIONS])


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Ends the measurement after the fixtures have ended."""
    if _is_measured_here(item):
        from ullage.verbs.testing import measuring

        measuring.judge_rest(item, item.stash[_LIMITS])


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Adds the figures to the reports."""
    if not _is_measured_here(item):
        yield
        return
    from ullage.verbs.testing import measuring

    measuring.hide_ullage(item, call)
    is_begun = measuring.is_measured(item)
    if is_begun and call.when == "call":
        measuring.note_call(item, item.stash[_LIMITS], item.config.stash[OPTIONS])
    outcome = yield
    if is_begun:
        report = outcome.get_result()  # type: ignore[attr-defined]
        if call.when == "call":
            measuring.note_outcome(item, call, report, item.config.stash[OPTIONS])
        elif call.when == "teardown":
            measuring.finish(item, report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Ends the processes that tests were forked from."""
    runs = session.config.stash.get(_RUNS, None)
    if runs is not None:
        runs.close()
