"""The rungs of a guard that is given none: plans that are chosen without a run.

plans = choose_plans(model, optimizer)      # every other block checkpointed, then every block
"""

from __future__ import annotations

from typing import Any

from ullage.act.techniques.applying.apply import describe_program, num_elements
from ullage.act.techniques.plan import Plan
from ullage.act.techniques.technique import Action
from ullage.ground.errors import PlanError
from ullage.players.inside.owners.module_trees import class_name, paths


def choose_plans(model: Any, optimizer: Any) -> list[Plan]:
    """A ladder without a run: every other block of a model is checkpointed, then every block.

    Raises:
        PlanError: the model has no repeated blocks.
    """
    blocks = _find_blocks(model)
    if not blocks:
        raise PlanError(
            f"{class_name(model)} has no repeated blocks to checkpoint; pass plans=, such as those "
            "of `ullage fit`"
        )
    choices = [blocks[::2], blocks] if len(blocks) > 2 else [blocks]
    return [
        Plan((Action("checkpoint", modules),), describe_program(model, optimizer, modules))
        for modules in choices
    ]


def _find_blocks(model: Any) -> tuple[str, ...]:
    """The repeated modules with the most parameters: children of one class of a list of modules,
    or of one module, that have children themselves.
    """
    groups: dict[tuple[str, str], list[tuple[str, Any]]] = {}
    for path, module in paths(model):
        if path and next(module.children(), None) is not None:
            parent = path.rpartition(".")[0]
            groups.setdefault((parent, class_name(module)), []).append((path, module))
    sizes = {
        key: sum(map(num_elements, (each for _, module in group for each in module.parameters())))
        for key, group in groups.items()
        if len(group) > 1 and key[1] not in ("ModuleList", "ModuleDict")
    }
    if not sizes:
        return ()
    largest = max(sizes, key=lambda key: sizes[key])
    return tuple(path for path, _ in groups[largest])
