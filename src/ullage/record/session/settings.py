"""What `ullage run` asks of a process that it watches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ullage.record.one_rank import lone_rank
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
    job: lone_rank.Job | None = None
    has_work: bool = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Settings from the ULLAGE_* variables."""
        steps, progress = environment.get("ULLAGE_STEPS"), environment.get("ULLAGE_PROGRESS")
        return cls(
            run_dir=Path(environment["ULLAGE_RUN_DIR"]),
            max_steps=int(steps) if steps else None,
            has_snapshot=environment.get("ULLAGE_SNAPSHOT", "1") == "1",
            has_real_init=environment.get("ULLAGE_REAL_INIT") == "1",
            has_values=environment.get("ULLAGE_VALUES", "1") == "1",
            progress=Path(progress) if progress else None,
            assumed=Assumed.parse(filter(None, environment.get("ULLAGE_ASSUME", "").split(","))),
            has_dummy_weights=environment.get("ULLAGE_DUMMY_WEIGHTS") == "1",
            job=lone_rank.Job.from_environment(environment),
            has_work=environment.get("ULLAGE_WORK") == "1",
        )
