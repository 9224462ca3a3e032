"""Records a process on the GPU of this machine, in which the program goes on as if nobody looked.

    recorder = record_gpu(torch, RecordingSettings(Path("run.pickle")))
    recorder.attach()

The file is a snapshot of PyTorch's with ullage's record, as `ullage run` leaves it. It is replaced
as a whole: at the end, when memory runs out, and after a step where a minute has passed, so that
the last state can be read whatever becomes of the process.
"""

from __future__ import annotations

from types import ModuleType

from ullage.players.inside.allocator.event_hook import EventHook
from ullage.players.inside.allocator.history import History
from ullage.players.inside.allocator.retention import Retention
from ullage.players.inside.entrances.settings import Mode, RecordingSettings
from ullage.players.inside.pressure.gauge import PressureGauge
from ullage.players.inside.process.publication import Publication
from ullage.players.inside.process.real_device import RealDevices
from ullage.players.inside.process.record_file import RecordFile
from ullage.players.inside.recorder import Recorder
from ullage.players.inside.steps.batch_waits import BatchWaits
from ullage.players.inside.steps.compiled import Compiled
from ullage.players.inside.steps.kernel_times import KernelTimes
from ullage.players.inside.steps.scaler_skips import ScalerSkips
from ullage.players.inside.steps.step_log import StepLog

_ENTRY_BYTES = 512
"""Host memory for an entry of torch's history with its stack: 290 to 420 were measured."""


def record_gpu(
    torch: ModuleType, settings: RecordingSettings, step_log: StepLog | None = None
) -> Recorder:
    """The recorder of such a process.

    step_log: is told of each step.
    """
    mode, path, limits = settings.mode, settings.path, settings.limits
    file = RecordFile(
        lambda: [] if path is None else [(path, True)], settings.flush_s, is_live=True
    )
    history = History(
        torch, settings.stack_ring_bytes // _ENTRY_BYTES, has_stacks=mode is Mode.FULL
    )
    recorder = Recorder(torch, file, history, limits=limits)
    hook = None
    if mode is not Mode.COUNTERS:
        hook = EventHook(torch, recorder.claims, settings.event_ring_bytes, limits.num_workspaces)
        if not hook.hook():
            # PyTorch's own history has the events then.
            hook = None
            recorder.warnings.append(
                "this torch reports its allocations in a way not known here: the events are those "
                "of PyTorch's own history; owners, modules and phases are not in the record"
            )
    recorder.has_events, recorder.peaks.is_taken = hook is not None, hook is None
    skips = ScalerSkips(torch, on_step=None if recorder.has_events else recorder.step)
    publication = Publication(torch, recorder.peaks, skips) if settings.is_published else None
    gauge = PressureGauge(
        torch, recorder.peaks,
        on_step=[each.note_step for each in (publication, step_log) if each is not None],
        max_rows=limits.num_steps,
        take_peak=recorder.peaks.take if hook is None else hook.take_peak,
        is_on=lambda: recorder.is_on and not recorder.has_failed,
        on_error=lambda error: recorder.note_failure("request", error),
    )  # fmt: skip
    recorder.parts = [RealDevices(torch, mode.value), recorder.peaks]
    if hook is not None:
        recorder.parts += [
            hook,
            recorder.phases,
            Compiled(torch, recorder.phases, None),
            BatchWaits(torch),
            Retention(limits, hook, recorder),
        ]
    if mode is Mode.FULL or (mode is Mode.EVENTS and hook is None):
        recorder.parts.append(history)
    recorder.parts += [skips, gauge]
    recorder.parts += [each for each in (publication, step_log) if each is not None]
    if settings.has_kernels:
        recorder.parts.append(KernelTimes(torch))
    return recorder
