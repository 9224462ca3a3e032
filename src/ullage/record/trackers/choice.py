"""Which trackers a recording tells: by name, or the user's own objects.

parse_choice("auto")                        # ("mlflow", "wandb", ...)
open_trackers(parse_choice([SummaryWriter("runs/1")]), patches)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ullage.record.patches import Patches
from ullage.record.trackers.comet import CometTracker
from ullage.record.trackers.mlflow import MlflowTracker
from ullage.record.trackers.neptune import NeptuneTracker
from ullage.record.trackers.tensorboard import TensorBoardTracker
from ullage.record.trackers.tracker import OwnTracker, Tracker
from ullage.record.trackers.wandb import WandbTracker

_OPEN: dict[str, Callable[[Patches, Any], Tracker]] = {
    "mlflow": lambda _, run: MlflowTracker(run),
    "wandb": lambda _, run: WandbTracker(run),
    "tensorboard": TensorBoardTracker,
    "neptune": NeptuneTracker,
    "comet": lambda _, experiment: CometTracker(experiment),
}
AUTO = "auto"
NAMES = tuple(_OPEN)
_PACKAGES = {
    "mlflow": "mlflow",
    "wandb": "wandb",
    "neptune": "neptune",
    "neptune_scale": "neptune",
    "comet_ml": "comet",
}
Choice = tuple[object, ...]


def parse_choice(trackers: object) -> Choice:
    """Names and objects, each once; "auto" is all names, and a list or tuple has several.

    Raises:
        SpecError: there is no such name, or an object has no way to be told.
    """
    several = trackers if isinstance(trackers, list | tuple) else (trackers,)
    listed = () if trackers is None else several
    choice: list[object] = []
    for item in listed:
        choice += NAMES if item == AUTO else [item]
    for item in choice:
        _check(item)
    objects = [item for item in choice if not isinstance(item, str)]
    # What goes to a run that is given does not go to the active run of the same library too.
    with_objects = {_name_of(item) for item in objects}
    names = dict.fromkeys(item for item in choice if isinstance(item, str))
    return (*(name for name in names if name not in with_objects), *objects)


def open_trackers(choice: Choice, patches: Patches) -> list[Tracker]:
    """The trackers of a choice.

    Args:
        choice: of `parse_choice`.
        patches: where a tracker may note the runs that the program begins.
    """
    return [_open(item, patches) for item in choice]


def _open(item: object, patches: Patches) -> Tracker:
    if isinstance(item, str):
        return _OPEN[item](patches, None)
    name = _name_of(item)
    return OwnTracker(item) if name is None else _OPEN[name](patches, item)


def _check(item: object) -> None:
    from ullage.errors import SpecError

    if isinstance(item, str):
        if item not in _OPEN:
            expected = ", ".join(repr(name) for name in (AUTO, *NAMES))
            raise SpecError(f"there is no tracker {item!r}; expected one of {expected}")
    elif _name_of(item) is None and not callable(getattr(item, "log", None)):
        raise SpecError(
            f"a {type(item).__name__} is no tracker; expected a name, a run or writer of "
            "a tracker, or an object with a method log(values, step)"
        )


def _name_of(target: object) -> str | None:
    """Whose an object is; None: the user's own."""
    if hasattr(target, "add_scalar"):
        return "tensorboard"
    packages = (kind.__module__.partition(".")[0] for kind in type(target).__mro__)
    return next((_PACKAGES[name] for name in packages if name in _PACKAGES), None)
