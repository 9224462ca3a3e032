"""Logs the figures of some steps into a run of a tracker's library, offline, beside metrics of the
program's own, and prints what the library's files have then.

    real.py SOURCE TRACKER DIRECTORY
"""

from __future__ import annotations

import glob
import json
import os
import sqlite3
import struct
import sys
import time
import zipfile
from types import SimpleNamespace

sys.path.insert(0, sys.argv[1])  # where ullage is
from ullage.record.patches import Patches
from ullage.record.trackers.choice import open_trackers, parse_choice
from ullage.record.trackers.tracking import Tracking

TRACKER, DIRECTORY = sys.argv[2:4]
GIB = 2**30
STEPS = 6
problems = []


def memory_stats(_device):
    """The allocator's counters."""
    levels = {"reserved_bytes": 8 * GIB, "inactive_split_bytes": GIB}
    stats = {name: {"all": {"current": level}} for name, level in levels.items()}
    return {**stats, "num_alloc_retries": 3, "num_ooms": 1}


TORCH = SimpleNamespace(
    _C=SimpleNamespace(_cuda_memoryStats=memory_stats),
    cuda=SimpleNamespace(device_count=lambda: 1, mem_get_info=lambda _: (70 * GIB, 80 * GIB)),
)
patches = Patches()
now = [0.0]
tracking = Tracking(
    TORCH, open_trackers(parse_choice(TRACKER), patches), clock=lambda: now[0], say=problems.append
)


def train(log):
    """Six steps, a report each; the program logs after every second step."""
    for step in range(1, STEPS + 1):
        now[0] += 2.0
        tracking.note_step((4 + step % 2) * GIB, 8 * GIB, 0.5)
        time.sleep(0.05)  # a queue in between is emptied
        if step % 2 == 0:
            log(100 + step, 1.0 / step)
    tracking.end()


def with_mlflow():
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    import mlflow

    mlflow.set_tracking_uri(f"file://{DIRECTORY}/mlruns")
    with mlflow.start_run() as run:
        train(lambda step, loss: mlflow.log_metrics({"loss": loss}, step=step))
    client, run_id = mlflow.MlflowClient(), run.info.run_id
    return {
        name: [[point.step, point.value] for point in client.get_metric_history(run_id, name)]
        for name in client.get_run(run_id).data.metrics
    }


def log_records(path):
    """The records of a file in the log format of LevelDB, which follows seven bytes of wandb's."""
    with open(path, "rb") as file:
        content = file.read()
    position, record = 7, b""
    while position + 7 <= len(content):
        rest = 32768 - position % 32768
        if rest < 7:  # the end of a block
            position += rest
            continue
        _, size, kind = struct.unpack_from("<IHB", content, position)
        record += content[position + 7 : position + 7 + size]
        position += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def with_wandb():
    import wandb
    from wandb.proto import wandb_internal_pb2

    run = wandb.init(mode="offline", dir=DIRECTORY)
    train(lambda step, loss: run.log({"loss": loss}, step=step))
    run.finish()
    wandb.teardown()  # the file is complete once its writer has ended
    (path,) = glob.glob(f"{DIRECTORY}/wandb/offline-run-*/run-*.wandb")
    rows, defined = [], []
    for data in log_records(path):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json)
                         for item in items})  # fmt: skip
        if record.WhichOneof("record_type") == "metric":
            metric = record.metric
            defined.append([metric.name or metric.glob_name, metric.step_metric])
    return {"rows": rows, "defined": defined}


def with_tensorboard():
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboardX import SummaryWriter

    closed = SummaryWriter(f"{DIRECTORY}/closed")
    writer = SummaryWriter(f"{DIRECTORY}/tb")
    other = SummaryWriter(f"{DIRECTORY}/other")
    other.close()
    closed.close()
    train(lambda step, loss: writer.add_scalar("loss", loss, step))
    writer.close()
    events = EventAccumulator(f"{DIRECTORY}/tb").Reload()
    return {
        tag: [[event.step, event.value] for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def with_neptune():
    from neptune_scale import Run

    run = Run(
        project="a/b", mode="offline", log_directory=DIRECTORY, experiment_name="e",
        enable_console_log_capture=False, source_tracking_config=None,
    )  # fmt: skip
    train(lambda step, loss: run.log_metrics({"loss": loss}, step=step))
    run.close()
    from neptune_api.proto.neptune_pb.ingest.v1.common_pb2 import UpdateRunSnapshot

    (path,) = glob.glob(f"{DIRECTORY}/**/*.sqlite3", recursive=True)
    values = {}
    with sqlite3.connect(path) as database:
        rows = database.execute("SELECT operation FROM run_operations WHERE operation_type = 0")
        for (operation,) in rows:
            snapshot = UpdateRunSnapshot()
            snapshot.ParseFromString(operation)
            step = snapshot.step.whole + snapshot.step.micro / 1e6
            for name, value in snapshot.append.items():
                values.setdefault(name, []).append([step, value.float64])
    return {name: sorted(points) for name, points in values.items()}


def with_comet():
    import comet_ml

    comet_ml.config.get_config()
    experiment = comet_ml.OfflineExperiment(
        offline_directory=DIRECTORY, log_code=False, log_git_metadata=False, log_env_details=False,
        auto_output_logging=False, display_summary_level=0,
    )  # fmt: skip
    train(lambda step, loss: experiment.log_metric("loss", loss, step=step))
    experiment.end()
    values = {}
    (path,) = glob.glob(f"{DIRECTORY}/*.zip")
    with zipfile.ZipFile(path) as archive:
        for line in archive.read("messages.json").decode().splitlines():
            message = json.loads(line)
            metric = (message.get("payload") or {}).get("metric")
            if message.get("type") == "metric_msg" and metric:
                values.setdefault(metric["metricName"], []).append(
                    [metric["step"], float(metric["metricValue"])]
                )
    return values


result = {"mlflow": with_mlflow, "wandb": with_wandb, "tensorboard": with_tensorboard,
          "neptune": with_neptune, "comet": with_comet}[TRACKER]()  # fmt: skip
print(json.dumps({"values": result, "problems": problems, "left": patches.undo()}))
