"""Each technique of the same mathematics on each kind of model: the same training, or a refusal.

matrix.py grid 0 40             each technique on each kind of model, on the modules it is for,
                                and 40 cases that are drawn
matrix.py drawn 0 500           cases that are drawn: technique, kind, sizes, modules, loop
matrix.py drawn 0 500 --page docs/results/plan-matrix.md    and writes what came of them

The last line is a list, a document a case. Its result is "applied" where losses of three steps
agree to 1e-5 and parameters, buffers and random numbers after them to 1e-9, "refused: ..." where
the plan said that it does not go, "not there" where the technique has no module to go on, and else
what differs.
"""

import copy
import json
import random
import sys
from collections import Counter
from datetime import date
from pathlib import Path

import torch
from matrix_models import KINDS

from ullage.errors import PlanError
from ullage.techniques.applying.apply import describe_program
from ullage.techniques.catalog import TECHNIQUES
from ullage.techniques.plan import Plan
from ullage.techniques.technique import Action, Place, Semantics

STEPS = 3
LOSS_TOLERANCE, TOLERANCE = 1e-5, 1e-9
OURS = [
    one
    for one in TECHNIQUES.values()
    if one.semantics is Semantics.SAME and one.apply and not one.needs_ranks
    and one.place is not Place.RANKS
]  # fmt: skip


def usual(made, optimizer, batch):
    optimizer.zero_grad()
    loss = made.loss(made.model, batch)
    loss.backward()
    optimizer.step()
    return loss


def zeroed_late(made, optimizer, batch):
    loss = made.loss(made.model, batch)
    made.model.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def zeroed_in_place(made, optimizer, batch):
    optimizer.zero_grad(set_to_none=False)
    loss = made.loss(made.model, batch)
    loss.backward()
    optimizer.step()
    return loss


def clipped(made, optimizer, batch):
    optimizer.zero_grad()
    loss = made.loss(made.model, batch)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(made.model.parameters(), 0.1)
    optimizer.step()
    return loss


def accumulated(made, optimizer, batch):
    optimizer.zero_grad()
    loss = made.loss(made.model, batch) / 2
    loss.backward()
    more = made.loss(made.model, batch.flip(0)) / 2
    more.backward()
    optimizer.step()
    return loss + more


def read_after(made, optimizer, batch):
    """The next steps are shorter where gradients were large."""
    loss = usual(made, optimizer, batch)
    held = [one.grad for one in made.model.parameters() if one.grad is not None]
    with torch.no_grad():
        for one in made.model.parameters():
            one.mul_(1 - 1e-3 * sum(gradient.norm() for gradient in held))
    return loss


def decayed_between(made, optimizer, batch):
    optimizer.zero_grad()
    loss = made.loss(made.model, batch)
    loss.backward()
    for group in optimizer.param_groups:
        group["lr"] *= 0.9
    optimizer.step()
    return loss


LOOPS = (
    usual, zeroed_late, zeroed_in_place, clipped, accumulated, read_after, decayed_between,
)  # fmt: skip
OPTIMIZERS = {
    "AdamW": lambda held: torch.optim.AdamW(held, lr=1e-2),
    "SGD": lambda held: torch.optim.SGD(held, lr=1e-2, momentum=0.9),
    "RMSprop": lambda held: torch.optim.RMSprop(held, lr=1e-3),
}


def make(kind, seed, loss=None):
    """A model of a kind in float64, the same for the same seed, with a loss if not one drawn."""
    torch.manual_seed(seed)
    random.seed(seed)
    torch.set_default_dtype(torch.float64)
    draw = random.Random(seed)
    if loss is not None:
        draw.loss = loss
    made = KINDS[kind](draw)
    made.model.train()
    return made


def train(case, actions):
    """Losses, and what is left after some steps."""
    seed, loop = case["seed"], globals()[case["loop"]]
    made = make(case["model"], seed, case.get("loss"))
    optimizer = OPTIMIZERS[case["optimizer"]](made.model.parameters())
    torch.manual_seed(seed + 1)
    random.seed(seed + 1)

    def steps():
        return [loop(made, optimizer, made.batch()).detach().clone() for _ in range(STEPS)]

    if actions is None:
        losses = steps()
    else:
        plan = Plan(tuple(actions), describe_program(made.model, optimizer))
        with plan.applied(made.model, optimizer):
            losses = steps()
    state = [one.detach().clone() for one in made.model.state_dict().values()]
    return losses, state, [torch.get_rng_state()], random.getstate()


def differs(found, expected):
    """Where two trainings differ: "" nowhere."""
    kinds = zip(("loss", "parameters", "random numbers"), found, expected, strict=False)
    for name, ours, theirs in kinds:
        least = LOSS_TOLERANCE if name == "loss" else TOLERANCE
        for one, other in zip(ours, theirs, strict=True):
            scale = max(1e-3, other.double().abs().max().item()) if other.numel() else 1.0
            off = (one.double() - other.double()).abs().max().item() if other.numel() else 0.0
            if not off <= least * scale:
                return f"{name} off by {off / scale:.1e}"
    return "" if found[3] == expected[3] else "Python's random numbers"


def judge(case):
    """What came of a case."""
    if not case["actions"]:
        return "not there"
    actions = [Action(**{**one, "modules": tuple(one["modules"])}) for one in case["actions"]]
    expected = train(case, None)
    try:
        found = train(case, actions)
    except PlanError as error:
        return f"refused: {error}"
    except Exception as error:
        return f"raised: {type(error).__name__}: {error}"
    return differs(found, expected) or "applied"


def modules_for(technique, made):
    """The modules that a technique is for."""
    if technique.place is not Place.MODULES:
        return ()
    if technique.is_for_chains:
        return made.chains
    return made.mlps if technique.name == "tiled_mlp" else made.blocks


def action(technique, modules, settings):
    return {"technique": technique.name, "modules": list(modules), "settings": dict(settings)}


def grid():
    """Each technique on each kind of model."""
    for kind in KINDS:
        for technique in OURS:
            seed = next(
                seed for seed in range(50) if made_of_chains(kind, seed) or kind == "mixture"
            )
            modules = modules_for(technique, make(kind, seed))
            is_there = modules or technique.place is not Place.MODULES
            settings = {"least_kib": 0} if technique.name == "offload_activations" else {}
            settings = {"num_rows": 5} if technique.name == "chunked_loss" else settings
            yield {
                "model": kind, "seed": seed, "loop": "usual", "optimizer": "AdamW",
                "loss": "mean", "technique": technique.name,
                "actions": [action(technique, modules, settings)] if is_there else [],
            }  # fmt: skip


def made_of_chains(kind, seed):
    return bool(make(kind, seed).chains)


def drawn(number):
    """A case by its number."""
    draw = random.Random(f"case {number}")
    kind, technique, seed = draw.choice(list(KINDS)), draw.choice(OURS), draw.randrange(10**6)
    made = make(kind, seed)
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
    return {
        "number": number, "model": kind, "seed": seed,
        "loop": "usual" if draw.random() < 0.5 else draw.choice(LOOPS).__name__,
        "optimizer": draw.choice(list(OPTIMIZERS)),
        "actions": [action(technique, modules, settings)] if is_there else [],
        "technique": technique.name,
    }  # fmt: skip


PAGE = """# Each technique on each kind of model

Made by `python tests/programs/plans/matrix.py {command}` on {date} with torch {torch}
on the CPU, in float64, and `PYTHONPATH=src`.

Each case is chosen at random: a technique that keeps the mathematics, a kind of model with its
sizes and seed, the modules for the technique, settings, optimizer, loss and training loop. The
model is trained for three steps with the technique and without it. A case counts as applied if its
losses agree to 1e-5, and its parameters, buffers and random numbers agree to 1e-9 at the end. It
counts as refused if the plan refuses the model, the modules or the loop. The table shows how often
each technique was applied and refused. flash_attention is for models of transformers and timm,
which are not among these (`tests/phantom/test_plan_arithmetic.py` has some).
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
        (one["technique"], one["model"], one["result"].partition(":")[0]) for one in cases
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
    what, *words = copy.copy(sys.argv[1:])
    torch.set_num_threads(1)
    cases = list(grid()) if what == "grid" else []
    cases += [drawn(number) for number in range(*map(int, words[:2]))]
    for case in cases:
        case["result"] = judge(case)
    if "--page" in words:
        path = Path(words[words.index("--page") + 1])
        path.parent.mkdir(exist_ok=True)
        path.write_text(page(cases, sys.argv[1:]), encoding="utf-8")
    print(json.dumps(cases))


if __name__ == "__main__":
    main()
