"""The child process that replays requests through torch's own allocator
(programs/allocator_replay.py).

with replaying(requests, orders, interpreter, directory) as finish:
    ...                     # other work in the meantime
    answers = finish()      # the answer of each replay, by its number
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from ullage.errors import EnvironmentProblem
from ullage.phantom.device import PhantomDevice
from ullage.phantom.launch import Child, RunOptions, make_environment, start
from ullage.phantom.program import UserProgram
from ullage.phantom.torch_build import TorchBuild
from ullage.programs import program_path
from ullage.protocol.variables import RECORD
from ullage.whatif.requests import Requests

REPLAYER = program_path("allocator_replay")
_TAIL_BYTES = 2000

Answers: TypeAlias = dict[int, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Where:
    """The interpreter whose torch replays the requests, and the device that it sees."""

    python: str
    build: TorchBuild
    device: PhantomDevice


@contextmanager
def replaying(
    requests: Requests, orders: Sequence[Mapping[str, Any]], where: Where, directory: Path
) -> Iterator[Callable[[], Answers]]:
    """Starts the replays (programs/allocator_replay.py), and yields a function that waits for their
    answers.

    Raises:
        EnvironmentProblem: from that function, if the child failed or the first replay has no
            answer.
    """
    names = [directory / name for name in ("requests", "orders", "results", "output")]
    requests.write(names[0])
    names[1].write_text(json.dumps(orders), encoding="utf-8")
    environment = make_environment(directory, where.device, where.build, RunOptions(alloc_conf=""))
    # The child is not recorded, and the caller's environment hides neither device nor cache.
    environment |= {RECORD: "0", "CUDA_VISIBLE_DEVICES": "0"}
    environment.pop("PYTORCH_NO_CUDA_MEMORY_CACHING", None)
    arguments = (str(REPLAYER), *map(str, names[:3]))
    program = UserProgram(where.python, arguments, arguments)
    with start(program, environment, output=names[3]) as child:
        yield lambda: _finish(child, where.python, results=names[2], output=names[3])


def _finish(child: Child, python: str, *, results: Path, output: Path) -> Answers:
    ended = child.wait()
    if ended.was_interrupted:
        raise KeyboardInterrupt
    lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
    answers = {answer.pop("number"): answer for answer in map(json.loads, lines)}
    if ended.exit_code or 0 not in answers:
        tail = output.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip()
        raise EnvironmentProblem(
            f"the replay ended with {ended.exit_code} in {python!r}: {tail or 'without a word'}"
        )
    return answers
