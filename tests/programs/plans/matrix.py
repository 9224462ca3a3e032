"""Each technique of the same mathematics on each kind of model, drawn: the same training, or a
refusal.

matrix.py drawn 0 500           cases that are drawn: technique, kind, sizes, modules, way of a step
matrix.py drawn 0 500 --publish and writes what came of them (PYTHONPATH=src:.)

The last line is a list, a document a case. Its result is "applied" where losses agree to 1e-5 and
gradients, parameters, buffers and random numbers to 1e-9, "refused: ..." where the plan said that
it does not go, "not there" where the technique has no module to go on, and else what differs.
"""

import json
import random
import sys
from collections import Counter
from datetime import date

import torch
from catalogue import make_kind
from matrix_models import KINDS
from same_training import judge

from ullage.act.techniques.catalog import TECHNIQUES
from ullage.act.techniques.technique import Place, Semantics

LOSS_TOLERANCE, TOLERANCE = 1e-5, 1e-9
OURS = [
    one
    for one in TECHNIQUES.values()
    if one.semantics is Semantics.SAME and one.apply and not one.needs_ranks
    and one.place is not Place.RANKS
]  # fmt: skip
WAYS = (
    "usual", "zeroed_late", "zeroed_in_place", "clipped", "accumulated", "read_after",
    "decayed_between",
)  # fmt: skip
OPTIMIZERS = ("AdamW", "SGD", "RMSprop")


def result_of(case):
    """What came of a case."""
    if not case["actions"]:
        return "not there"
    found = judge(case)
    if "refused" in found and not found["left over"]:
        return f"refused: {found['refused']}"
    off = found.get("off", {})
    is_same = found.get("same random numbers") and not found["left over"]
    is_near = all(
        value <= (LOSS_TOLERANCE if name == "losses" else TOLERANCE) for name, value in off.items()
    )
    return "applied" if is_same and is_near else f"differs: {found}"


def modules_for(technique, made):
    """The modules that a technique is for."""
    if technique.place is not Place.MODULES:
        return ()
    if technique.is_for_chains:
        return made.chains
    return made.mlps if technique.name == "tiled_mlp" else made.blocks


def drawn(number):
    """A case by its number."""
    draw = random.Random(f"case {number}")
    kind, technique, seed = draw.choice(list(KINDS)), draw.choice(OURS), draw.randrange(10**6)
    made = make_kind(kind, seed)
    modules = ()
    if technique.place is Place.MODULES:
        pools = [modules_for(technique, made), made.blocks, made.mlps]
        inner = [name for name, _ in made.model.named_modules() if name and "experts." not in name]
        pool = draw.choice(pools) if draw.random() < 0.8 else tuple(inner)
        modules = tuple(draw.sample(pool, draw.randint(1, min(3, len(pool))))) if pool else ()
    settings = dict(draw.choice([{}, *technique.variants]))
    if technique.name == "offload_activations":
        settings = {"least_kib": draw.choice((0, 1))}
    if technique.name == "chunked_loss":
        settings = {"num_rows": draw.choice((1, 3, 64))}
    if technique.name == "tiled_mlp":
        settings = {"num_tiles": draw.choice((2, 3, 8))}
    is_there = modules or technique.place is not Place.MODULES
    action = {"technique": technique.name, "modules": modules, "settings": settings}
    return {
        "number": number, "program": kind, "seed": seed,
        "way": "usual" if draw.random() < 0.5 else draw.choice(WAYS),
        "optimizer": draw.choice(OPTIMIZERS),
        "actions": [action] if is_there else [],
        "technique": technique.name,
    }  # fmt: skip


PAGE = """# Each technique on each kind of model

Made by `python tests/programs/plans/matrix.py {command}` on {date} with torch {torch}
on the CPU, in float64, and `PYTHONPATH=src`.

Each case is chosen at random: a technique that keeps the mathematics, a kind of model with its
sizes and seed, the modules for the technique, settings, optimizer, loss and training loop. The
model is trained for three steps with the technique, for two more after it was undone, and as many
without it. A case counts as applied if its losses agree to 1e-5, if gradients, parameters, buffers
and random numbers agree to 1e-9 after every step, and if nothing of the technique is left. It
counts as refused if the plan refuses the model, the modules or the loop. The table shows how often
each technique was applied and refused. flash_attention is for models of transformers and timm,
which are not among these (`tests/phantom/same_training.py` has some).
"""


def page(cases, words):
    """What came of drawn cases, for people."""
    kinds = list(KINDS)
    lines = [PAGE.format(command=" ".join(words), date=date.today(), torch=torch.__version__)]
    lines += [
        (
            f"**{sum(map(is_wrong, cases))} of {len(cases)} cases silently different.** Applied: "
            f"{sum(one['result'] == 'applied' for one in cases)}; refused: "
            f"{sum(one['result'].startswith('refused') for one in cases)}; without a module of the "
            f"kind that was drawn: {sum(one['result'] == 'not there' for one in cases)}.\n"
        ),
        f"| technique | {' | '.join(kinds)} |",
        f"|---|{'--:|' * len(kinds)}",
    ]
    counts = Counter(
        (one["technique"], one["program"], one["result"].partition(":")[0]) for one in cases
    )
    for technique in OURS:
        cells = [
            f"{counts[technique.name, kind, 'applied']}/{counts[technique.name, kind, 'refused']}"
            for kind in kinds
        ]
        lines.append(f"| {technique.name} | {' | '.join(cells)} |")
    lines += ["", "| refusal | times |", "|---|--:|"]
    reasons = Counter(
        reason_of(one["result"]) for one in cases if one["result"].startswith("refused")
    )
    lines += [f"| {reason} | {count} |" for reason, count in reasons.most_common()]
    return "\n".join(lines) + "\n"


def reason_of(result):
    """A refusal without the names of one case."""
    words = [
        "a module" if "blocks." in word or word.startswith(("'blocks", "'head")) else word
        for word in result.removeprefix("refused: ").split()
    ]
    return " ".join(words).replace("|", "/")


def is_wrong(case):
    return not case["result"].startswith(("applied", "refused: ", "not there"))


def main():
    """Draws the cases, judges them, and writes the page if one is asked for."""
    first, last, *words = sys.argv[2:]
    torch.set_num_threads(1)
    cases = [drawn(number) for number in range(int(first), int(last))]
    for case in cases:
        case["result"] = result_of(case)
    if words == ["--publish"]:
        from benchmarks.results import publish

        publish("plan-matrix", page(cases, sys.argv[1:]))
    print(json.dumps(cases))


if __name__ == "__main__":
    main()
