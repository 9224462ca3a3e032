"""The process that marked tests run in: pytest under the phantom, which forks for each test.

It imports torch and collects the files of the marked tests as pytest does anywhere, touches no
device, and waits for orders, one JSON object a line, on the socket that it was given. A forked
process runs its test with all that pytest and its plugins do around one, sends the reports, and is
gone: no test sees what another left on the device. See phantom_run.py for the other side.

    answer  {"is_ready": true}                         once
    order   {"run": "tests/test_a.py::test_b"}
    answer  {"report": {...}}, {"warning": {...}}      as they come
            {"is_done": true}                          at the end of the test
            {"why": "..."}                             instead: what broke in pytest
            {"ended": 0}                               when its process is gone, with its exit code
            {"unknown": "..."}                         instead: why there is no such test, if known
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest

from ullage.ground.protocol.run import RunVariables
from ullage.ground.protocol.variables import RUN_DIR
from ullage.players.inside.entrances.simulated_gpu import record_run
from ullage.players.inside.owners import source_location
from ullage.players.phantom.bootstrap import end_with, stubs_for_libraries
from ullage.verbs.testing.measuring import LOOK
from ullage.verbs.testing.owners import Owned, find_owned
from ullage.verbs.testing.reports import Json, warning_as_json
from ullage.verbs.testing.settings import IS_CHILD

# What chooses tests, and what is written of them all, is the business of the pytest that gives the
# orders. Plugins have their own: what one does not have is not set.
_LEFT_TO_PARENT: dict[str, Any] = {
    "pyargs": False, "keyword": "", "markexpr": "", "deselect": None, "collectonly": False,
    "usepdb": False, "trace": False, "lf": False, "failedfirst": False, "newfirst": False,
    "stepwise": False, "stepwise_skip": False, "cacheclear": False, "cacheshow": None, "maxfail": 0,
    "log_file": None, "xmlpath": None,
    # pytest-xdist, -shard, -split; -html, -reportlog, -json-report, allure-pytest
    "dist": "no", "distload": False, "numprocesses": None, "maxprocesses": None, "tx": [],
    "looponfail": False, "shard_id": None, "splits": None,
    "htmlpath": None, "report_log": None, "json_report": False, "allure_report_dir": None,
}  # fmt: skip


def serve(number: int) -> NoReturn:
    """Serves orders until there are no more.

    number: the file descriptor of the socket.
    """
    # Ctrl-C at the terminal is for the pytest that gives the orders.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    orders = _Orders(socket.socket(fileno=number))
    setup = orders.read()
    if setup is None:
        os._exit(0)
    end_with(setup["parent"])
    sys.argv[:] = setup["argv"]
    with stubs_for_libraries():
        import torch
    recorder = record_run(torch, RunVariables.from_environment(os.environ))
    recorder.attach()
    config = _prepare(setup)
    directory = Path(os.environ[RUN_DIR])
    look: Callable[[], Owned] = functools.partial(find_owned, recorder, directory)
    config.stash[LOOK] = look
    config.pluginmanager.register(_Server(orders, torch, config), "ullage-server")
    code = config.hook.pytest_cmdline_main(config=config)
    os._exit(int(code))  # the session could not begin


def _prepare(setup: Json) -> pytest.Config:
    """pytest's configuration from the same command line, for the files that have marked tests."""
    from _pytest.config import _prepareconfig  # as pytest-xdist makes that of its workers

    config = _prepareconfig(setup["arguments"])
    for name, value in _LEFT_TO_PARENT.items():
        if hasattr(config.option, name):
            setattr(config.option, name, value)
    config.option.basetemp = setup["basetemp"]
    config.args = setup["files"]
    config.stash[IS_CHILD] = True
    if setup["workerinput"] is not None:  # for pytest-xdist's fixtures, and plugins that know it
        config.workerinput = setup["workerinput"]  # type: ignore[attr-defined]
        config.workeroutput = {}  # type: ignore[attr-defined]
    config.pluginmanager.unregister(name="terminal")
    return config


class _Orders:
    def __init__(self, orders: socket.socket) -> None:
        orders.set_inheritable(False)
        self._orders = orders
        self._lines = orders.makefile("rb")

    def read(self) -> Json | None:
        """The next order; None where there are no more."""
        line = self._lines.readline()
        if not line:
            return None
        order: Json = json.loads(line)
        return order

    def answer(self, **fields: object) -> None:
        self._orders.sendall(json.dumps(fields, default=str).encode() + b"\n")


class _Server:
    """Takes the place of pytest's loop over the tests."""

    def __init__(self, orders: _Orders, torch: ModuleType, config: pytest.Config) -> None:
        self._orders = orders
        self._torch: Any = torch
        self._config = config
        self._errors: list[str] = []
        self._touched_at = ""
        self._is_test = self._has_threads = False
        torch.cuda._lazy_call(self._note_touch)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Why tests may be missing."""
        if report.failed:
            self._errors.append(f"{report.nodeid}:\n{report.longreprtext}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> NoReturn:
        """Carries out orders until there are no more."""
        items = {item.nodeid: item for item in session.items}
        self._prepare_to_fork()
        can_fork = self._can_fork()
        self._orders.answer(is_ready=True)
        while (order := self._orders.read()) is not None:
            item = items.get(order["run"])
            if item is None:
                self._orders.answer(unknown="\n".join(self._errors))
            elif can_fork:
                self._fork(item)
            else:
                self._run(item)
                self._orders.answer(ended=0, touched_at=self._touched_at)
                break
        # The session has no end here: what plugins write then is of the tests of the other pytest.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self._config.hook
        self._orders.answer(
            report=hook.pytest_report_to_serializable(config=self._config, report=report)
        )

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: object
    ) -> None:
        """Sends a warning of the test; those of the collection have been given before."""
        del location
        if self._is_test:
            self._orders.answer(warning=warning_as_json(warning_message), when=when, nodeid=nodeid)

    def _note_touch(self) -> None:
        if not self._is_test:
            self._touched_at = source_location.here() or "in a place that is not known"

    def _prepare_to_fork(self) -> None:
        """Does once what each forked process would do or undo for itself."""
        with contextlib.suppress(AttributeError):  # private: one directory, not one for each fork
            self._config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        # What reads the record; torch has imported numpy, if it is there, already.
        import ullage.explain.snapshot
        import ullage.log.snapshot_reader  # noqa: F401

        # OpenMP's threads are not forked, and who waits for them waits for ever.
        self._has_threads = len(list(Path("/proc/self/task").iterdir())) > 1
        gc.collect()
        # The collector would walk over torch in every test, and so copy its pages.
        gc.freeze()

    def _can_fork(self) -> bool:
        """True if the collection has left the device alone: torch refuses it in a forked process
        otherwise, by a note that only a forked process can see.
        """
        pid = os.fork()
        if pid == 0:
            os._exit(int(self._torch.cuda._is_in_bad_fork()))
        _, status = os.waitpid(pid, 0)
        return status == 0

    def _fork(self, item: pytest.Item) -> None:
        """Runs a test in a process of its own, and waits for its end."""
        sys.stdout.flush()
        sys.stderr.flush()
        warm = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                end_with(warm)
                self._run(item)
                sys.stdout.flush()
                sys.stderr.flush()
            finally:  # whatever the test did to this process, it is no second server
                os._exit(0)
        _, status = os.waitpid(pid, 0)
        self._orders.answer(ended=os.waitstatus_to_exitcode(status))

    def _run(self, item: pytest.Item) -> None:
        self._is_test = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._has_threads:
            self._torch.set_num_threads(1)
        try:
            self._config.hook.pytest_runtest_protocol(item=item, nextitem=None)
            self._orders.answer(is_done=True)
        except pytest.exit.Exception as error:
            self._orders.answer(exit=str(error))
        except KeyboardInterrupt:
            self._orders.answer(exit="KeyboardInterrupt")
        except BaseException:  # a plugin; pytest calls it an internal error
            self._orders.answer(why=f"INTERNALERROR\n{traceback.format_exc()}")
