"""Records a process of `ullage run`, from the import of torch to its end, on a simulated GPU."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, cast

from ullage.ground.protocol.run import RunVariables
from ullage.players.inside.allocator.history import History
from ullage.players.inside.allocator.simulated_devices import SimulatedDevices
from ullage.players.inside.one_rank.lone_rank import LoneRanks
from ullage.players.inside.part import Part
from ullage.players.inside.process.record_file import RecordFile
from ullage.players.inside.process.run_directory import RunDirectory
from ullage.players.inside.recorder import Recorder
from ullage.players.inside.steps.compiled import Compiled
from ullage.players.inside.steps.work_log import WorkLog
from ullage.players.inside.values.assume import Assumed
from ullage.players.inside.values.autotune import Timed
from ullage.players.inside.values.kernels import Kernels
from ullage.players.inside.values.values import Values
from ullage.players.inside.weights.dummy_vision_weights import MadeUpVision
from ullage.players.inside.weights.dummy_weights import MadeUpWeights
from ullage.players.inside.weights.weights import SkippedWeights

if TYPE_CHECKING:
    from ullage.verbs.run.options import RunOptions


def record_run(torch: ModuleType, run: RunVariables) -> Recorder:
    """The recorder of such a process."""
    # Each field is there: the record itself need not be imported beside the program.
    options = cast("RunOptions", SimpleNamespace(**run.options))
    history, file = History(torch), RecordFile(lambda: directory.find_paths())
    recorder = Recorder(torch, file, history, is_run=True, max_steps=options.steps)
    recorder.has_holders = run.has_snapshot
    directory = RunDirectory(recorder, run)
    note, phases = recorder.shapes.note, recorder.phases
    weights = SkippedWeights(torch, is_on=not options.real_init)
    phases.values = values = Values(
        torch, weights, Assumed.parse(options.assume), recorder.unseen, recorder.shapes,
        is_following=options.values,
    )  # fmt: skip
    dummies: list[Part] = []
    if options.dummy_weights:
        directory_of_dummies = run.run_dir / "weights"
        made_up = MadeUpWeights(torch, directory_of_dummies, recorder.warnings.append)
        weights.is_made_up = made_up.holds
        dummies = [made_up, MadeUpVision(torch, directory_of_dummies, made_up.note)]
    recorder.parts = [
        # Without a snapshot the program has torch's history to itself.
        *([history] if run.has_snapshot else ()),
        SimulatedDevices(torch, recorder.peaks, recorder.ooms, recorder.unseen),
        WorkLog(is_on=run.has_clock),
        recorder.peaks,
        phases,
        Compiled(torch, phases, weights),
        weights,
        *dummies,
        values,
        Timed(note),
        *([Kernels(torch, values)] if options.values else ()),
        LoneRanks(torch, run.lone_rank, note),
        directory,
    ]
    return recorder
