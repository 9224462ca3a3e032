"""What a function of the program's is told of the steps, and when; and that it harms nobody."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from os import environ
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ullage
from ullage.players.inside.entrances.recording import Recording
from ullage.players.inside.steps.step_log import StepLog

GIB = 2**30
GUIDE = Path(__file__).parents[3] / "docs/reference/record.md"
PYTHON = environ.get("ULLAGE_TEST_TRACKERS_PYTHON", sys.executable)
PACKAGES = {
    "mlflow": "mlflow", "wandb": "wandb", "tensorboard": "tensorboardX",
    "neptune": "neptune_scale", "comet": "comet_ml",
}  # fmt: skip
BEGINS = {
    "mlflow": "mlflow.set_tracking_uri('file:mlruns'); mlflow.start_run()",
    "wandb": "wandb.init(mode='offline')",
    "tensorboard": "writer = tensorboardX.SummaryWriter('runs')",
    "neptune": "run = neptune_scale.Run(project='a/b', mode='offline', log_directory='runs', "
    "experiment_name='e', enable_console_log_capture=False, source_tracking_config=None)",
    "comet": "comet_ml.config.get_config(); "
    "experiment = comet_ml.OfflineExperiment(offline_directory='runs', log_code=False)",
}
ENDS = {
    "mlflow": "print(mlflow.MlflowClient().get_metric_history(mlflow.active_run().info.run_id, "
    "'ullage/headroom_bytes')[0].value); mlflow.end_run()",
    "wandb": "wandb.log({'loss': 1}); print(wandb.run.summary['ullage/headroom_bytes']); "
    "wandb.finish()",
    "tensorboard": "writer.close(); from tensorboard.backend.event_processing.event_accumulator "
    "import EventAccumulator as E; print(E('runs').Reload().Scalars('ullage/headroom_bytes')"
    "[0].value)",
    # Its queue is a database: the number is in it as eight bytes, after the name.
    "neptune": "run.close(); import glob, struct; "
    "text = b''.join(open(file, 'rb').read() for file in glob.glob('runs/**/*', recursive=True) "
    "if '.sqlite3' in file); value = struct.pack('<d', 73.0 * GIB); "
    "print(73.0 * GIB if b'ullage/headroom_bytes' in text and value in text else 'missing')",
    "comet": "print(experiment.get_metric('ullage/headroom_bytes')); experiment.end()",
}
Heard = list[tuple[int, dict[str, float]]]


def make_torch(*levels: tuple[int, int, int]) -> Any:
    """A torch whose devices have these reserved, fragmented and free GiB."""

    def memory_stats(device: int) -> dict[str, Any]:
        reserved, fragmented, _ = levels[device]
        values = {"reserved_bytes": reserved * GIB, "inactive_split_bytes": fragmented * GIB}
        stats: dict[str, Any] = {name: {"all": {"current": n}} for name, n in values.items()}
        return {**stats, "num_alloc_retries": 3 + device, "num_ooms": device}

    return SimpleNamespace(
        _C=SimpleNamespace(_cuda_memoryStats=memory_stats),
        cuda=SimpleNamespace(
            device_count=lambda: len(levels),
            mem_get_info=lambda device: (levels[device][2] * GIB, 80 * GIB),
        ),
    )


class Clock:
    """Seconds that only the test moves."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_the_first_step_is_told_at_once_and_the_next_after_a_second() -> None:
    heard: Heard = []
    clock = Clock()
    torch = make_torch((2, 1, 70), (10, 2, 60))
    steps = StepLog(torch, lambda values, step: heard.append((step, values)), clock)
    for peak, seconds in ((4, 0.2), (9, 0.2), (5, 0.6)):
        steps.note_step(peak * GIB, (peak + 1) * GIB, seconds)
        clock.now_s += 0.5
    ((_, first), (step, values)) = heard
    assert first["ullage/allocated_peak_bytes"] == 4 * GIB
    assert step == 3
    assert values == {
        "ullage/allocated_peak_bytes": 9 * GIB,  # of the steps since the last report
        "ullage/reserved_peak_bytes": 10 * GIB,
        "ullage/fragmented_bytes": 2 * GIB,  # of the device with the most
        "ullage/headroom_bytes": (10 + 60 - 9) * GIB,
        "ullage/step_seconds": pytest.approx(0.4),
        "ullage/alloc_retries": 4,
        "ullage/ooms": 1,
    }


def test_the_last_steps_are_told_at_the_end() -> None:
    heard: list[int] = []
    steps = StepLog(make_torch((2, 1, 70)), lambda _values, step: heard.append(step))
    for _ in range(5):
        steps.note_step(GIB, GIB, 0.1)
    steps.close()
    steps.close()
    assert heard == [1, 5]


def test_a_function_that_raises_is_said_once_without_its_secrets(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock, calls = Clock(), []

    def log(_values: dict[str, float], step: int) -> None:
        calls.append(step)
        raise ConnectionError("401 for https://ada:hunter2@host/api?key=s3cret\nand more")

    steps = StepLog(make_torch((2, 1, 70)), log, clock)
    for _ in range(3):
        steps.note_step(GIB, GIB, 0.1)
        clock.now_s += 2.0
    steps.close()
    assert calls == [1]
    assert capsys.readouterr().err == (
        "ullage: no more steps are logged: ConnectionError: 401 for https://...host/api?...\n"
    )


def test_a_cell_that_runs_again_has_the_same_function() -> None:
    cells = [Recording(log=lambda values, step: print(values, step)) for _ in range(2)]
    assert cells[0].is_same(cells[1])
    assert not cells[0].is_same(Recording(log=print))


@pytest.mark.nightly
@pytest.mark.parametrize("library", PACKAGES)
def test_the_guides_line_logs_to_the_library(tmp_path: Path, library: str) -> None:
    package = PACKAGES[library]
    command = [PYTHON, "-c", f"import {package}"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip(f"{package} is not installed in {PYTHON}")
    row = re.search(rf"^\| {library} .*\| `(.*)` \|$", GUIDE.read_text(), re.MULTILINE)
    assert row is not None
    code = f"""
from __future__ import annotations
import sys, {package}
from types import SimpleNamespace
sys.path.insert(0, {str(Path(ullage.__file__).parents[1])!r})
from ullage.players.inside.steps.step_log import StepLog
GIB = {GIB}
{inspect.getsource(make_torch)}
{BEGINS[library]}
steps = StepLog(make_torch((8, 1, 70)), {row[1]})
for _ in range(3):
    steps.note_step(5 * GIB, 6 * GIB, 0.1)
steps.close()
{ENDS[library]}
"""
    done = subprocess.run(
        [PYTHON, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**environ, "HOME": str(tmp_path), "MLFLOW_ALLOW_FILE_STORE": "true"}, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "no more steps" not in done.stderr
    assert str(73.0 * GIB) in done.stdout or str(73 * GIB) in done.stdout, done.stdout
