"""The memory that other settings of the allocator would have reserved: `ullage what-if` and
`ullage.what_if`.

    found = ullage.what_if("snapshot.pickle", gpu="l4")
    found.recommended, found.report.lower_bound_bytes
    print(found.text())
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ullage.answers.verb_answer import VerbAnswer
from ullage.ground.protocol.option import takes
from ullage.ground.protocol.plain import Mark
from ullage.verbs.explain.options import WhatIfOptions

if TYPE_CHECKING:
    from ullage.answers.block_kinds import Blocks
    from ullage.explain.whatif.outcomes import WhatIfReport


@dataclass(frozen=True, slots=True)
class WhatIf(VerbAnswer):
    """A snapshot's requests, made again under other settings."""

    report: Annotated[WhatIfReport, Mark.FLAT]

    @property
    def exit_code(self) -> int:
        """The exit code of the command line: 1 where no setting has memory on the GPU, else 0."""
        return int(not self.report.has_room)

    @property
    def recommended(self) -> str | None:
        """The value for PYTORCH_ALLOC_CONF; None: nothing that was tried is worth a change."""
        best = self.report.recommended
        return None if best is None else best.setting.text

    def blocks(self, *, full: bool = False) -> Blocks:
        """The blocks of its report."""
        from ullage.verbs.what_if.text import what_if_blocks

        return what_if_blocks(self.report)


@takes(WhatIfOptions)
def what_if(options: WhatIfOptions) -> WhatIf:
    """Replays a snapshot's allocations by the rules of torch's allocator, on a simulated GPU, under
    every setting that may help. That torch is started only where the rules do not know a setting.

    Raises:
        SnapshotError: the file cannot be read, or holds no allocations.
        SpecError: an option is not possible, or the recording was of another allocator.
        EnvironmentProblem: no torch for CUDA there, or one that this ullage does not know.
    """
    from ullage.explain.whatif.engine import what_if as replay_under_settings
    from ullage.log.snapshot_reader import read_snapshot
    from ullage.players.phantom.device import choose_device
    from ullage.players.phantom.launch import check_platform

    check_platform()
    device = choose_device(options.gpu, memory=options.memory)
    interpreter = None if options.python is None else os.fspath(options.python)
    snapshot = read_snapshot(Path(options.file))
    return WhatIf(replay_under_settings(snapshot, python=interpreter, device=device))
