"""Has tests run on a phantom GPU: starts the process that they are forked from, and passes on what
their processes report.

    runs = PhantomRuns(config, files)
    runs.run(item, nextitem, "a10g")
    runs.close()

There is one such process for each GPU that tests name, started when the first of them comes. It is
the same pytest, with the same command line; see warm_pytest.py.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Literal

import pytest

from ullage.ground.errors import EnvironmentProblem, UllageError
from ullage.verbs.testing.reports import (
    Json,
    broken_report,
    closing_report,
    report_from_json,
    warning_from_json,
)
from ullage.verbs.testing.warm_pytest import WarmPytest

When = Literal["setup", "call", "teardown"]


class PhantomRuns:
    """The processes that tests are forked from, by GPU."""

    def __init__(self, config: pytest.Config, files: Sequence[Path]) -> None:
        self._config = config
        self._files = [str(file) for file in files]
        self._warm: dict[str, WarmPytest] = {}
        self._num_started = 0
        self._problem: UllageError | None = None
        self._is_warned = False

    def run(self, item: pytest.Item, nextitem: pytest.Item | None, gpu: str) -> None:
        """Runs one test, as pytest's own runner would."""
        hook = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._reports(item, gpu):
            hook.pytest_runtest_logreport(report=report)
        _tear_down(item, nextitem)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def close(self) -> None:
        """Ends the processes."""
        for warm in self._warm.values():
            warm.close()
        self._warm.clear()

    def _reports(self, item: pytest.Item, gpu: str) -> Iterator[pytest.TestReport]:
        when: When = "setup"
        why = ""
        is_closed = False
        try:
            for answer in self._warm_for(gpu).run(item.nodeid):
                if "report" in answer:
                    report = report_from_json(self._config, answer["report"])
                    when = _next(report)
                    is_closed = report.when == "teardown"
                    if report.failed and getattr(self._config.option, "usepdb", False):
                        report.sections.append(("gpu_memory", _describe_pdb(item)))
                    yield report
                elif "warning" in answer:
                    self._pass_on_warning(answer)
                elif "exit" in answer:
                    self._drop(gpu)
                    pytest.exit(answer["exit"])
                else:
                    why = why or answer["why"]
                    if "is_gone" in answer:
                        self._drop(gpu)
                        self._warn_of_touch(answer.get("touched_at"))
        except UllageError as error:
            why = (
                f"gpu_memory: no phantom GPU can be played for this test: {error}. Tests need "
                "torch's CUDA build in the environment of pytest and ullage"
            )
        except pytest.fail.Exception as error:  # pytest-timeout, in this process
            why = str(error)
            if gpu in self._warm and self._warm[gpu].is_ready:
                self._drop(gpu)
            else:
                why += "; the process that plays the GPU was still starting"
        except BaseException:
            self._drop(gpu)
            raise
        if why:
            yield broken_report(item, when, why)
        if not is_closed and when != "teardown":
            yield closing_report(item)

    def _warm_for(self, gpu: str) -> WarmPytest:
        """The process for a GPU, which is started where there is none."""
        if gpu not in self._warm:
            if self._problem is not None:  # it is looked for once
                raise self._problem
            try:
                self._num_started += 1
                self._warm[gpu] = WarmPytest(self._config, self._files, gpu, self._num_started)
            except EnvironmentProblem as error:
                self._problem = error
                raise
        return self._warm[gpu]

    def _drop(self, gpu: str) -> None:
        warm = self._warm.pop(gpu, None)
        if warm is not None:
            warm.kill()

    def _pass_on_warning(self, answer: Json) -> None:
        self._warn(warning_from_json(answer["warning"]), answer["when"], answer["nodeid"])

    def _warn_of_touch(self, where: str | None) -> None:
        """Says once why tests are slow."""
        if where is None or self._is_warned:
            return
        self._is_warned = True
        text = (
            f"gpu_memory: the GPU is used while tests are collected ({where}), so each marked test "
            "needs a fresh process, which takes seconds; use it in fixtures or tests alone"
        )
        self._warn(warnings.WarningMessage(text, pytest.PytestWarning, "", 0), "collect", "")

    def _warn(self, warning: warnings.WarningMessage, when: str, nodeid: str) -> None:
        self._config.hook.pytest_warning_recorded.call_historic(
            kwargs={"warning_message": warning, "when": when, "nodeid": nodeid, "location": None}
        )


def _next(report: pytest.TestReport) -> When:
    """The phase that follows."""
    is_setup = report.when == "setup"
    return "call" if is_setup and report.passed else "teardown"


def _describe_pdb(item: pytest.Item) -> str:
    return (
        "--pdb does not reach the process of this test; run pytest itself on the phantom: "
        f"ullage run -- -m pytest --pdb '{item.nodeid}'"
    )


def _tear_down(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Ends the fixtures of this process that the next test does not share, as a test that had run
    here would have.
    """
    capture = item.config.pluginmanager.getplugin("capturemanager")

    def tear_down() -> None:
        with nullcontext() if capture is None else capture.item_capture("teardown", item):
            item.session._setupstate.teardown_exact(nextitem)

    call: pytest.CallInfo[None] = pytest.CallInfo.from_call(
        tear_down, when="teardown", reraise=(pytest.exit.Exception, KeyboardInterrupt)
    )
    if call.excinfo is not None:
        report = item.ihook.pytest_runtest_makereport(item=item, call=call)
        item.ihook.pytest_runtest_logreport(report=report)
