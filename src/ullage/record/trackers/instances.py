"""The objects of a library's class that the program makes while it is recorded, for trackers that
keep no list of their active runs.

    instances = Instances(patches, {"torch.utils.tensorboard.writer": "SummaryWriter"})
    instances.newest_first()
    instances.end()                 # `Patches.undo` takes out the rest
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from ullage.record.patches import Patches
from ullage.record.session.import_hooks import on_import


class Instances:
    """Notes each object as it is made, and keeps none alive.

    Args:
        patches: what holds the constructors that are replaced.
        classes: the module of each class, and the class.
    """

    def __init__(self, patches: Patches, classes: Mapping[str, str]) -> None:
        self._patches = patches
        self._classes = classes
        self._references: list[weakref.ref[Any]] = []
        self._call_offs = [on_import(module, self._watch) for module in classes]

    def newest_first(self) -> list[Any]:
        """Those that are there still."""
        self._references = [each for each in self._references if each() is not None]
        objects = (each() for each in reversed(self._references))
        return [each for each in objects if each is not None]

    def end(self) -> None:
        """Waits for no module any longer."""
        for call_off in self._call_offs:
            call_off()

    def _watch(self, module: ModuleType) -> None:
        kind = getattr(module, self._classes[module.__name__], None)
        if not isinstance(kind, type):
            return
        construct = kind.__init__  # type: ignore[misc]

        @functools.wraps(construct)
        def construct_and_note(instance: Any, *arguments: Any, **options: Any) -> None:
            construct(instance, *arguments, **options)
            self._references.append(weakref.ref(instance))

        self._patches.replace(kind, "__init__", construct_and_note)
