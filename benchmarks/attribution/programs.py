"""The reference programs, and how each runs on the phantom.

peak = run_program(PROGRAMS[0], Path("env/bin/python"), Path("scratch"))
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.attribution.judge import Peak, find_peak
from ullage.log.reader import read_record

ROOT = Path(__file__).resolve().parent.parent.parent
PLACE = ROOT / "tests" / "programs" / "attribution"
GPU = "h100-80gb"
TIMEOUT_S = 300
_ULLAGE = (sys.executable, "-c", "from ullage.cli import main; main()")


@dataclass(frozen=True, slots=True)
class Program:
    """One reference program.

    Attributes:
        what: for the table.
        flags: its own, behind the file that it writes the truth to.
        world_size: how many ranks the job has; the first is played.
        packages: what it needs beside torch.
    """

    name: str
    what: str
    flags: tuple[str, ...] = ()
    world_size: int = 1
    packages: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The name with the flags."""
        return " ".join((self.name, *self.flags))


PROGRAMS = (
    Program("eager", "transformer, AdamW (foreach)"),
    Program("checkpointed", "recomputed blocks, AdamW (fused)"),
    Program("checkpointed", "the same, reentrant", ("reentrant",)),
    Program("fsdp2", "fully_shard in bfloat16, 4 ranks", world_size=4),
    Program("ddp", "DistributedDataParallel, 4 ranks", world_size=4),
    Program("ddp", "the same, gradients in the buckets", ("view",), world_size=4),
    Program("compiled", "each block compiled", packages=("triton",)),
    Program("autocast", "bfloat16, casts of weights kept"),
    Program("autocast", "float16 with a GradScaler", ("float16",)),
    Program("eight_bit", "AdamW in 8 bits (bitsandbytes)", packages=("bitsandbytes",)),
    Program("lora", "adapters beside a frozen base"),
    Program("diffusion", "UNet with cross attention, weights averaged"),
    Program("cnn", "residual network, SGD with momentum"),
    Program("generation", "Llama of transformers, KV cache", packages=("transformers",)),
    Program("own_cache", "generation, a cache of one's own"),
    Program("moe", "top-2 of 8 experts, AdamW (for-loop)"),
)


class ProgramFailedError(Exception):
    """A reference program did not run to its end."""


def missing_packages(program: Program, python: Path) -> tuple[str, ...]:
    """What a program needs and an interpreter's environment has not."""
    code = (
        "import sys; from importlib.util import find_spec; "
        "print(*[name for name in sys.argv[1:] if find_spec(name) is None])"
    )
    command = [str(python), "-c", code, *program.packages]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return tuple(found.split())


def run_program(program: Program, python: Path, directory: Path) -> Peak:
    """Runs a program under the phantom and finds its peak, with the truth beside it.

    Raises:
        ProgramFailedError: it ended with another exit code than 0, or not at all.
    """
    snapshot, truth = directory / "snapshot.pickle", directory / "truth.json"
    ranks = ("--world-size", str(program.world_size)) if program.world_size > 1 else ()
    command = [
        *_ULLAGE, "run", "--gpu", GPU, "--python", str(python), *ranks,
        "--snapshot", str(snapshot),
        "--", str(PLACE / f"{program.name}.py"), str(truth), *program.flags,
    ]  # fmt: skip
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTORCH_")}
    try:
        done = subprocess.run(
            command, cwd=directory, env=kept, capture_output=True, text=True, check=False,
            timeout=TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise ProgramFailedError(f"{program.label} did not end within {TIMEOUT_S} s") from None
    if done.returncode != 0:
        raise ProgramFailedError(
            f"{program.label} ended with exit code {done.returncode}:\n{done.stderr[-2000:]}"
        )
    return find_peak(read_record(snapshot), truth)
