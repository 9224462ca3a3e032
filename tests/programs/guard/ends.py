"""How a training ends that fails at some of its operations: as it does unfailed, or otherwise."""

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

from training import Faults, differences

from ullage.ground.errors import GuardError


class Run(NamedTuple):
    """What is left of a training, by name; its errors; how many recoveries its guard has counted,
    None where nobody asks.
    """

    state: dict[str, Any]
    faults: Faults
    num_recoveries: int | None = None


class Unguarded(nullcontext):
    """Stands for a guard where there is none."""

    num_recoveries = None

    def step(self, fn, *arguments, **keywords):
        """Runs a step."""
        return fn(*arguments, **keywords)


@dataclass(frozen=True, slots=True)
class Kind:
    """A training, and which of its operations fail.

    Attributes:
        train: makes a `Run` of the numbers of the operations that fail (None: of none, and they
            are counted), guarded or not.
        at_all: at every operation, not only at those that allocate.
        again: a second error comes so many operations after the first, in a training for each.
        differ: the names of what differs in two states.
    """

    train: Callable[..., Run]
    at_all: bool = False
    again: tuple[int, ...] = ()
    differ: Callable[..., list[str]] = differences

    def errors(self, faults):
        """The numbers of the operations that fail, for each training."""
        numbers = range(1, faults.count + 1) if self.at_all else faults.allocating
        if not self.again:
            return [[number] for number in numbers]
        return [[number, number + more] for number in numbers for more in self.again]

    def end_of(self, numbers, expected):
        """ "equal", "refused: ...", "the script's own: ...", "no error came", or what differs."""
        try:
            state, faults, num_recoveries = self.train(numbers)
        except GuardError as error:
            return f"refused: {error}"
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            return f"the script's own: {str(error).partition('. ')[0]}"
        if numbers and (faults.num_raised == 0 or num_recoveries == 0):
            return "no error came"
        wrong = self.differ(state, expected)
        return f"differs: {', '.join(wrong[:3])}" if wrong else "equal"

    def sweep(self, errors, expected):
        """How trainings ended, each with one of some lists of errors; the first of each end."""
        results, examples = Counter(), {}
        for numbers in errors:
            end = self.end_of(numbers, expected)
            results[end] += 1
            examples.setdefault(end, numbers)
        return {"results": results, "examples": examples}


def share_of(numbers, share):
    """Some of many numbers: "9" is every ninth; "5:12" the sixth share of about twelve, where the
    shares begin at numbers one after another.
    """
    turn, _, size = share.rpartition(":")
    every = -(-len(numbers) // int(size)) or 1 if turn else int(size)
    return numbers[int(turn or 0) % every :: every]
