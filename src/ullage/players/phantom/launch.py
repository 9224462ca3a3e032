"""Starts a program on the phantom, and waits for it.

The phantom library is preloaded into a child process, in front of NVIDIA's libraries, and a
directory with a sitecustomize.py is put on its module path. The program meets nothing else of
ullage. This module imports only the standard library, so that the child starts at once; the parent
imports the rest while the child runs.

    with start(program, environment, stdout_to_stderr=False) as child:
        ...                     # import, prepare
        ended = child.wait()
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from ullage.ground.errors import EnvironmentProblem, SpecError
from ullage.ground.native.libraries import LIBRARY_DIR, PHANTOM
from ullage.ground.protocol.plain import plain
from ullage.ground.protocol.run import LoneRank, PlanVariables, Platform, RunVariables
from ullage.ground.protocol.variables import GUARD, RUN_DIR
from ullage.players.phantom.caches import compiler_variables, without_spaces
from ullage.players.phantom.device import PhantomDevice
from ullage.players.phantom.insistence import insist
from ullage.players.phantom.orphan_processes import end_orphans
from ullage.players.phantom.program import UserProgram, put_before
from ullage.players.phantom.rank import Rank
from ullage.players.phantom.torch_build import TorchBuild
from ullage.verbs.run.options import RunOptions

if TYPE_CHECKING:
    from ullage.act.techniques.plan import Plan
    from ullage.log.kernel_times import KernelTimes


# The signals that end a process: who handles them, and when.

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def delayed_signals() -> Iterator[None]:
    """Delays signals until the context ends."""
    came: list[int] = []
    with handling(lambda number, _frame: came.append(number)):
        yield
    for number in came:
        signal.raise_signal(number)


@contextmanager
def handling(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Signals that end a process go to the handler; only a main thread can do that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, handler)
        for number in ENDING
        # What is ignored already, as under nohup, stays so, in the child as well.
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def is_in_foreground() -> bool:
    """True if Ctrl-C at the terminal reaches this process's whole group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


SITE_DIR = Path(__file__).parent / "site"
_NVIDIA_SMI = "ullage.players.phantom.nvidia_smi"
PROGRESS_FILE = "progress"
PLAN_FILE = "plan.json"
_POLL_S = 0.1
_DEFAULTS = RunOptions(())
_MAX_SIGNALS = 3  # a program that hangs in its own handler of Ctrl-C is ended by the third


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """The options of a program's run, apart from the device.

    Attributes:
        run: the options of `ullage run` that say how it runs; its process reads them whole.
        has_snapshot: whether a snapshot is written.
        rank, mail: the rank that is played without its peers, and what such ranks share.
        num_devices: how many devices there are, all alike; None: one, or those of a rank's node.
        variables: environment variables, in addition to the parent's.
        inputs, nvml: where each process notes the files that it reads, and its use of devices.
        plan: the plan that is applied to the model; None: none.
        describes, replays: whether the model is described, and the plan replayed on the CPU.
        chooses_rungs: whether it is described for the rungs of a guard that is given none.
        has_clock: whether steps are timed.
        measured: kernels of a recording, which correct the times; None: none do.
        timeout_s: when it is ended, if ever.
    """

    run: RunOptions = _DEFAULTS
    has_snapshot: bool = True
    rank: Rank | None = None
    mail: Path | None = None
    num_devices: int | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    inputs: Path | None = None
    plan: Plan | None = None
    describes: bool = False
    chooses_rungs: bool = False
    has_clock: bool = False
    replays: bool = False
    nvml: Path | None = None
    measured: KernelTimes | None = None
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """How the child ended: its exit code (128 + its signal), how long it ran, whether the run was
    asked to stop (Ctrl-C, SIGTERM, SIGHUP), the processes that it left running, which were ended,
    whether it was a server that was stopped, its time limit, and whether ullage killed it.
    """

    exit_code: int
    wall_s: float
    was_interrupted: bool
    left_running: tuple[tuple[int, str], ...] = ()
    was_stopped: bool = False
    timed_out_after_s: float | None = None
    was_killed: bool = False


def check_platform() -> None:
    """Raises EnvironmentProblem where the phantom cannot work."""
    system = platform.system()
    if system != "Linux":
        raise EnvironmentProblem(
            "the phantom GPU stands in for Linux libraries, and this is "
            f"{'macOS' if system == 'Darwin' else system}; use WSL2 on Windows, or a Linux "
            "container (docker run -it python:3.11) on either"
        )


def make_environment(
    run_dir: Path,
    device: PhantomDevice,
    build: TorchBuild,
    options: LaunchOptions,
    base: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The child's environment: the parent's, with the phantom in front.

    Raises:
        SpecError: a number of steps below 1.
    """
    steps, alloc_conf = options.run.steps, options.run.alloc_conf
    if steps is not None and steps < 1:
        raise SpecError(f"steps={steps} is not a number of steps; expected 1 or more")
    rank = options.rank
    environment = dict(os.environ if base is None else base) | dict(options.variables)
    environment |= rank.variables() if rank else {}
    libraries = without_spaces(LIBRARY_DIR, run_dir)
    preloaded = [libraries / PHANTOM.name, *build.preloaded(libraries)]
    put_before(environment, "LD_PRELOAD", ":".join(map(str, preloaded)))
    put_before(environment, "LD_LIBRARY_PATH", str(libraries))
    put_before(environment, "PYTHONPATH", str(SITE_DIR))
    put_before(environment, "PATH", str(install_nvidia_smi(run_dir, sys.executable)))
    environment |= compiler_variables(run_dir, environment, device.environment_text())
    variables = _run_variables(run_dir, device, build, options).to_environment() | plan_variables(
        run_dir, options.plan, describes=options.describes or options.chooses_rungs,
        replays=options.replays,
    )  # fmt: skip
    for name, value in variables.items():
        environment.pop(name, None)  # not inherited from a run around this one
        if value is not None:
            environment[name] = value
    if alloc_conf is not None:
        # The second name is that of older versions; both set differently is an error in some.
        environment["PYTORCH_ALLOC_CONF"] = environment["PYTORCH_CUDA_ALLOC_CONF"] = alloc_conf
    return environment


def _run_variables(
    run_dir: Path, device: PhantomDevice, build: TorchBuild, options: LaunchOptions
) -> RunVariables:
    rank, run = options.rank, options.run
    return RunVariables(
        run_dir=run_dir,
        options=plain(run),
        device=device.environment_text(),
        libraries=build.libraries_text(),
        num_devices=options.num_devices or (rank.local_world_size if rank else 1),
        platform=Platform(run.platform),
        parent=os.getpid(),
        progress=run_dir / PROGRESS_FILE,
        has_snapshot=options.has_snapshot,
        has_clock=options.has_clock,
        virtual_time=f"{device.model}|{run.interconnect or ''}" * (run.clock == "virtual"),
        lone_rank=LoneRank(rank.number, rank.world_size, options.mail or run_dir) if rank else None,
        inputs=options.inputs,
        nvml=options.nvml,
    )


def plan_variables(
    run_dir: Path, plan: Plan | None, *, describes: bool = False, replays: bool = False
) -> dict[str, str | None]:
    """Writes the plan to a file in `run_dir`; the variables that have a process apply it.

    None: a variable that the process must not inherit.
    """
    if plan is not None and not plan.actions:
        plan = None  # the program as it is
    if plan is not None:
        run_dir.mkdir(exist_ok=True)
        (run_dir / PLAN_FILE).write_text(plan.text(), encoding="utf-8")
    variables = PlanVariables(
        plan=None if plan is None else run_dir / PLAN_FILE,
        notes=run_dir if plan is not None or describes else None,
        describes=describes,
        replays=replays,
    ).to_environment()
    return {**variables, **({} if plan is None else plan.variables)}


class Child:
    """A started program."""

    def __init__(self, run_dir: Path | None) -> None:
        self.pid = 0
        self._run_dir = run_dir
        self._process: subprocess.Popen[bytes] | None = None
        self._started_s = time.monotonic()
        self._signals: list[int] = []
        self._timed_out_after_s: float | None = None
        self._was_killed = False

    def start(self, process: subprocess.Popen[bytes]) -> None:
        """Takes the started process, and sends it the signals that came before."""
        self.pid, self._process = process.pid, process
        for number in self._signals:
            process.send_signal(number)
        if self._signals:
            self._insist(self._signals[0])

    def wait(self, on_poll: Callable[[], None] | None = None) -> Ended:
        """Waits for the end; `on_poll` is called about ten times a second."""
        if self._process is None:
            raise RuntimeError("there is no process to wait for")
        while on_poll is not None and not self.is_ended_within(_POLL_S):
            on_poll()
        code = self._process.wait()
        return Ended(
            exit_code=128 - code if code < 0 else code,
            wall_s=round(time.monotonic() - self._started_s, 3),
            was_interrupted=bool(self._signals),
            timed_out_after_s=self._timed_out_after_s,
            was_killed=self._was_killed,
            left_running=end_orphans(self._run_dir) if self._run_dir is not None else (),
        )

    def forward(self, number: int, frame: FrameType | None) -> None:
        """A signal handler that forwards the signal to the child."""
        del frame
        self._signals.append(number)
        if self._process is None:
            return
        if len(self._signals) == 1:
            self._insist(number)
        if len(self._signals) >= _MAX_SIGNALS:
            self._kill()
        if number == signal.SIGINT and is_in_foreground():
            return  # the terminal has sent it to the child too
        self._process.send_signal(number)

    def _insist(self, number: int) -> None:
        if self._process is not None and self._run_dir is not None:
            arguments = (self._process, self._run_dir, number, self._kill)
            threading.Thread(target=insist, args=arguments, daemon=True).start()

    def _kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._was_killed = True
            self._process.kill()

    @property
    def is_running(self) -> bool:
        """True if the process has not ended."""
        return self._process is not None and self._process.poll() is None

    def is_ended_within(self, patience_s: float) -> bool:
        """True if the process ends by itself in that time."""
        if self._process is None:
            return False
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self, patience_s: float, is_busy: Callable[[], bool]) -> bool:
        """Terminates the process, and kills it where it goes on and is not busy; False: it had
        already ended.
        """
        if self._process is None or not self.is_running:
            return False
        self._process.terminate()
        self._insist(signal.SIGTERM)
        while not self.is_ended_within(patience_s):
            if not is_busy():
                self._kill()
                break
        return True

    @contextmanager
    def limited(self, timeout_s: float | None) -> Iterator[None]:
        """Ends the child after a time, until the context ends; None: without limit."""
        if timeout_s is None:
            yield
            return

        def end() -> None:
            if self.is_running:
                self._timed_out_after_s = timeout_s
                self.stop()

        timer = threading.Timer(timeout_s, end)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def stop(self) -> None:
        """Ends the child and what it started, if they still run."""
        if self._process is not None and self._process.poll() is None:
            self._kill()
            self._process.wait()
            if self._run_dir is not None:
                end_orphans(self._run_dir)


@contextmanager
def start(
    program: UserProgram,
    environment: Mapping[str, str],
    *,
    stdout_to_stderr: bool = False,
    output: Path | None = None,
) -> Iterator[Child]:
    """Starts a program; until the context ends, signals that end a process are forwarded to it.

    Args:
        program: what to run.
        environment: from `make_environment`; without RUN_DIR or GUARD in it, the processes that the
            program leaves running are left alone.
        stdout_to_stderr: whether the program's own output goes to stderr, which leaves stdout to a
            document.
        output: a file that all the program prints goes to; it then has no stdin either.

    Raises:
        EnvironmentProblem: the interpreter cannot be started.
    """
    command = [program.python, *program.arguments]
    sys.stdout.flush()
    run_dir = environment.get(RUN_DIR) or environment.get(GUARD)
    child = Child(None if run_dir is None else Path(run_dir))
    with handling(child.forward):  # from before there is a process: no signal finds it unattended
        try:
            with ExitStack() as stack:
                file = None if output is None else stack.enter_context(output.open("ab"))
                process = subprocess.Popen(
                    command,
                    env=dict(environment),
                    cwd=program.directory,
                    stdin=subprocess.DEVNULL if file else program.stdin,
                    stdout=file or (2 if stdout_to_stderr else None),
                    stderr=file,
                )
        except OSError as error:
            raise EnvironmentProblem(
                f"{program.python!r} cannot be started: {error.strerror or error}"
            ) from None
        child.start(process)
        try:
            yield child
        finally:
            child.stop()


def install_nvidia_smi(run_dir: Path, python: str) -> Path:
    """Writes the command into a run's directory; returns the directory to put on PATH."""
    directory = run_dir / "bin"
    directory.mkdir(parents=True, exist_ok=True)
    code = (
        f"import sys; sys.path.insert(0, {str(LIBRARY_DIR.parents[2])!r}); "
        f"from {_NVIDIA_SMI} import main; main()"
    )
    # -I: the program's environment, such as its PYTHONPATH, must not affect this command.
    text = f'#!/bin/sh\nexec {shlex.quote(python)} -I -c {shlex.quote(code)} "$@"\n'
    command = directory / "nvidia-smi"
    command.write_text(text, encoding="utf-8")
    command.chmod(0o755)
    return directory


@contextmanager
def run_directory() -> Iterator[Path]:
    """A directory for the files of a run, which is removed afterwards.

    Raises:
        EnvironmentProblem: no temporary directory can be made.
    """
    try:
        directory = tempfile.mkdtemp(prefix="ullage-")
    except OSError as error:
        raise EnvironmentProblem(
            f"no temporary directory can be made ({error.strerror or error}); set TMPDIR to a "
            "directory that can be written to"
        ) from None
    try:
        yield Path(directory)
    finally:
        with delayed_signals():
            shutil.rmtree(directory, ignore_errors=True)
