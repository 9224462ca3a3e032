"""What `ullage run` asks of a process that it watches."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ullage.protocol.run import LoneRank, RunVariables
from ullage.record.values.assume import WORST_CASE, Assumed


@dataclass(frozen=True, slots=True)
class Settings:
    """What `ullage run` asks of a watched process; read from the environment."""

    run_dir: Path
    max_steps: int | None
    has_snapshot: bool
    has_real_init: bool
    has_values: bool
    progress: Path | None
    assumed: Assumed = WORST_CASE
    has_dummy_weights: bool = False
    job: LoneRank | None = None
    has_clock: bool = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Settings from the ULLAGE_* variables."""
        run = RunVariables.from_environment(environment)
        return cls(
            run_dir=run.run_dir,
            max_steps=run.max_steps,
            has_snapshot=run.has_snapshot,
            has_real_init=run.has_real_init,
            has_values=run.has_values,
            progress=run.progress,
            assumed=Assumed.parse(run.assumptions),
            has_dummy_weights=run.has_dummy_weights,
            job=run.lone_rank,
            has_clock=run.has_clock,
        )


def launcher_rank() -> int | None:
    """The rank that a launcher gave this process."""
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdigit() else None
