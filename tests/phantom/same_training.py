"""The same training under a plan: what programs are trained, and how near each has to come.

The programs of tests/programs/plans train on the processor with real arithmetic, for some steps
under a plan and for some more after it was undone, and for as many without. What is the same
mathematics is the same bit for bit (losses, gradients, parameters, buffers, optimizer states, all
random numbers), or up to the order of sums; a technique that rounds says how far it is off; what
would train otherwise is refused, with a sentence. In each case nothing of the plan is left.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.phantom.alone import Done, printed_by, run_alone, run_ranks
from tests.rotation import Table

from ullage.act.techniques.catalog import TECHNIQUES
from ullage.act.techniques.made_for import MadeFor
from ullage.act.techniques.plan import Plan
from ullage.act.techniques.technique import Action, Place, Semantics, Technique

SAME = tuple(
    one
    for one in TECHNIQUES.values()
    if one.semantics is Semantics.SAME and one.apply and not one.needs_ranks
)
# In float32 and float64, of the largest value of a tensor: sums in another order.
SINGLE, DOUBLE = 1e-3, 1e-9
LOSS = 1e-5


@dataclass(frozen=True, slots=True)
class Near:
    """A training that is not equal bit for bit, and how far its values may be off.

    Attributes:
        losses: of a loss, relative.
        rest: of gradients, parameters and buffers, to the largest value of a tensor; None: of any.
    """

    losses: float
    rest: float | None = None


@dataclass(frozen=True, slots=True)
class Other:
    """Another training: its first loss is that of the program as it is, or not."""

    begins_alike: bool


Expected = Near | Other | str | None


@dataclass(frozen=True, slots=True)
class Case:
    """A program under a plan.

    Attributes:
        program: of tests/programs/plans/catalogue.py.
        actions: each a technique, its modules and its settings.
        expected: None: equal bit for bit; a text: refused, with these words.
        way: of its steps, in ways.py.
        optimizer: its kind.
        more: what else names the program.
    """

    program: str
    actions: tuple[tuple[str, Sequence[str], Mapping[str, Any]], ...]
    expected: Expected = None
    way: str = "usual"
    optimizer: str = "AdamW"
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def document(self) -> dict[str, Any]:
        """As the program reads it."""
        actions = [
            {"technique": name, "modules": list(modules), "settings": dict(settings)}
            for name, modules, settings in self.actions
        ]
        plain = {"program": self.program, "way": self.way, "optimizer": self.optimizer}
        return {**plain, **self.more, "actions": actions}

    def __str__(self) -> str:
        """For people."""
        parts = [self.program, *(self.way,) * (self.way != "usual")]
        parts += [f"{self.optimizer}"] * (self.optimizer != "AdamW")
        for name, modules, settings in self.actions:
            parts.append(" ".join((name, *modules, *(f"{k}={v}" for k, v in settings.items()))))
        return ", ".join(parts)


def case(
    program: str,
    technique: str,
    modules: Sequence[str] | str = (),
    expected: Expected = None,
    *,
    under: Sequence[tuple[str, Sequence[str]]] = (),
    way: str = "usual",
    optimizer: str = "AdamW",
    options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Case:
    """A case of one technique, which may be applied on top of others."""
    names = (modules,) if isinstance(modules, str) else modules
    actions = (*((name, given, {}) for name, given in under), (technique, names, settings))
    return Case(program, actions, expected, way, optimizer, {"options": options or {}})


MODELS = ("gpt2", "llama", "vit", "resnet", "t5", "mixture", "mlp", "mamba")
WITH_MLPS = ("gpt2", "llama")
KINDS = (
    "causal", "bidirectional", "convolution", "batch_norm", "state_space", "mixture",
    "zero_projections", "tied", "dropout", "in_place", "called_twice", "statistics", "counting",
    "given",
)  # fmt: skip
REFUSED_BY_MODELS = {
    ("mixture", "selective_checkpoint"): "changes in place what is saved",
    ("gpt2", "tiled_mlp"): "draws random numbers",
    # The vision transformer alone writes it out.
    **{
        (model, "flash_attention"): "writes its attention out" for model in MODELS if model != "vit"
    },
}
# On the modules that a technique is for: what is refused all the same.
REFUSED_BY_KINDS = {
    ("batch_norm", "tiled_mlp"): "changes its input",
    ("in_place", "selective_checkpoint"): "changes in place what is saved",
    ("mixture", "tiled_mlp"): "lets positions meet in 'mean'",
    **{(kind, "flash_attention"): "transformers or timm" for kind in KINDS},
}


def modules_of(technique: Technique) -> tuple[str, ...]:
    """What a technique is for in a program."""
    if technique.place is not Place.MODULES:
        return ()
    if technique.is_for_chains:
        return ("*chains",)
    return ("*mlps",) if technique.name == "tiled_mlp" else ("*blocks",)


def of_models() -> list[Case]:
    """Each technique of the same mathematics, with each of its settings, on each model."""
    return [
        Case(
            model,
            ((technique.name, modules_of(technique), settings),),
            REFUSED_BY_MODELS.get(
                (model, technique.name), Near(SINGLE, SINGLE) if technique.reorders else None
            ),
        )
        for technique in SAME
        if not technique.is_for_chains
        for model in (WITH_MLPS if technique.name == "tiled_mlp" else MODELS)
        for settings in ({}, *technique.variants)
    ]


def of_kinds() -> list[Case]:
    """Each technique of the same mathematics on each kind of model, in float64."""
    settings = {"offload_activations": {"least_kib": 0}, "chunked_loss": {"num_rows": 5}}
    return [
        Case(
            kind,
            ((technique.name, modules_of(technique), settings.get(technique.name, {})),),
            REFUSED_BY_KINDS.get(
                (kind, technique.name), Near(DOUBLE, DOUBLE) if technique.reorders else None
            ),
            # With this seed there are chains in the feed-forward parts, but for a mixture.
            more={"seed": 0 if kind in ("batch_norm", "mixture") else 3, "loss": "mean"},
        )
        for technique in SAME
        for kind in KINDS
        if not (kind == "mixture" and technique.is_for_chains)
    ]


BLOCKS = ("blocks.0", "blocks.1", "blocks.2")
FEATURES = tuple(f"features.{index}" for index in range(12))
UNDER = (("checkpoint", BLOCKS),)
BIT_FOR_BIT = (
    case("text", "free_gradients"),
    case("text", "free_gradients", way="zeroed_late_by_the_optimizer"),
    case("text", "optimizer_kernel", kernel="for_loop"),
    case("text", "optimizer_kernel", kernel="for_loop", optimizer="SGD"),
    case("text", "optimizer_in_backward"),
    case("image", "optimizer_in_backward"),
    case("text", "optimizer_offload"),
    case("text", "optimizer_offload", way="by_closure_of_the_loss"),
    case("text", "optimizer_offload", optimizer="SGD"),
    case("text", "optimizer_offload", percent=40),
    case("text", "parameter_offload", BLOCKS),
    case("text", "parameter_offload", ("blocks.1", "blocks.2", "blocks.0")),
    case("text", "parameter_offload", BLOCKS, part_mib=1, optimizer="SGD", options={"scale": 2}),
    case("text", "parameter_offload", BLOCKS, under=UNDER, way="clipped"),
    case("image", "parameter_offload", FEATURES),
    case("text", "offload_activations", BLOCKS, least_kib=0),
    case("text", "offload_activations", BLOCKS, least_kib=20),
    case("text", "offload_activations", ("blocks.1.mlp", "blocks.3"), least_kib=0),
    case("image", "offload_activations", FEATURES, least_kib=0),
    case("text", "offload_activations", BLOCKS, under=UNDER, least_kib=0),
    case("image", "checkpoint_segments", "features"),
    case("image", "checkpoint_segments", "features", lengths="5,1,2,4"),
    case("text", "checkpoint", BLOCKS, under=[("selective_checkpoint", ("blocks.1.mlp",))]),
    case("text", "selective_checkpoint", BLOCKS, saves="matmul"),
    case("text", "selective_checkpoint", BLOCKS, saves="second_matmul"),
    case("text", "selective_checkpoint", BLOCKS, saves="0,3,4"),
    case("image", "selective_checkpoint", "features"),
)
CALM: Mapping[str, Any] = {"dropout": 0.0}
SELECTIVELY = (("selective_checkpoint", ("*blocks",)),)
ROUNDED = (
    # The kernels are compared within the first call of a block, where its products are saved.
    case("vit", "flash_attention", (), Near(SINGLE, SINGLE), under=SELECTIVELY),
    case("text", "optimizer_kernel", (), Near(LOSS)),
    case("text", "optimizer_kernel", (), Near(LOSS), optimizer="SGD"),
    case("text", "tiled_mlp", ("blocks.0.mlp", "blocks.1.mlp"), Near(LOSS)),
    case("small_llama", "flash_attention", (), Near(LOSS)),
    case("small_llama", "chunked_loss", (), Near(LOSS), num_rows=20),
    case("plain", "chunked_loss", (), Near(LOSS), num_rows=20),
    case("text", "micro_batches", (), Near(LOSS), options=CALM),
    case("small_llama", "micro_batches", (), Near(LOSS), num_parts=3),
    case("small_llama", "micro_batches", (), Near(LOSS), options={"leaves_out": True}),
    case("plain", "micro_batches", (), Near(LOSS), options=CALM),
    case("text", "bf16_states", (), Near(1e-3)),
    case("text", "autocast", (), Near(1e-3)),
    case("small_llama", "autocast", (), Near(1e-3)),
    case("text", "eight_bit_states", (), Near(1e-3), options={"scale": 2}),
    case("text", "four_bit_states", (), Near(1e-2), options={"scale": 2}),
    case("text", "bf16_parameters", (), Near(1e-3)),
    case("text", "bf16_parameters", (), Near(1e-3), keeps="masters"),
    case("image", "bf16_parameters", (), Near(1e-2)),
    case("text", "autocast_float16", (), Near(1e-3)),
    case("text", "autocast_float16", (), Near(1e-3), way="clipped"),
    case("small_llama", "autocast_float16", (), Near(1e-3), under=[("chunked_loss", ())]),
)
# Of techniques that no other case of every day has.
EVERY_DAY = tuple(
    next(one for one in ROUNDED if one.actions[-1][0] == name)
    for name in ("micro_batches", "bf16_states", "autocast_float16")
)
OTHERS = (
    case("text", "lora", (), Other(begins_alike=True)),
    case("small_llama", "lora", (), Other(begins_alike=True)),
    case("text", "lora", (), Other(begins_alike=False), base="nf4"),
    case("small_llama", "shorter_sequence", (), Other(begins_alike=False), percent=75),
)
REFUSED = (
    case("text", "optimizer_in_backward", (), "clipped", way="clipped"),
    case("text", "optimizer_in_backward", (), "clipped", way="clipped_by_value"),
    case("text", "optimizer_in_backward", (), "accumulate", way="accumulated"),
    case("text", "optimizer_in_backward", (), "GradScaler", way="scaled"),
    case("text", "free_gradients", (), "add up", way="never_zeroed"),
    case("text", "optimizer_offload", (), "LBFGS", optimizer="LBFGS", way="by_closure"),
    case("text", "optimizer_kernel", (), "one step", optimizer="LBFGS", way="by_closure"),
    case("text", "tiled_mlp", "blocks.0", "meet in 'bmm'"),
    case("image", "tiled_mlp", "features", "aten::convolution"),
    case("text", "tiled_mlp", "blocks.0", "meet in 'bmm'", options=CALM),
    case("image", "checkpoint_segments", "features", "whose sum is 12", lengths="5,5"),
    case("text", "checkpoint_segments", "blocks.0", "is a Block, not a"),
    case("text", "offload_activations", ("blocks.0", "blocks.0.mlp"), "is a part of"),
    case("text", "flash_attention", (), "writes its attention out"),
    case("text", "selective_checkpoint", "blocks.0", "checkpointed selectively",
         under=[("tiled_mlp", ("blocks.0.mlp",))]),
    case("text", "selective_checkpoint", BLOCKS,
         "6 products, numbered from 0, and none with the number 6, 9", saves="2,6,9"),
    case("image", "chunked_loss", (), "besides its loss"),
    case("text", "bucket_view", (), "DistributedDataParallel"),
    case("text", "four_bit_states", (), "four_bit_states", optimizer="SGD"),
    case("text", "bf16_parameters", (), "LBFGS", optimizer="LBFGS", way="by_closure"),
    case("image", "shorter_sequence", (), "no tokens"),
    case("image", "micro_batches", (), "statistics"),
    case("text", "autocast", (), "uses autocast itself", way="autocast"),
    case("text", "eight_bit_states", (), "eight_bit_states", optimizer="SGD"),
    case("text", "checkpoint", BLOCKS, "within a checkpoint",
         under=[("parameter_offload", BLOCKS)]),
    case("text", "parameter_offload", ("blocks.0", "blocks.0.mlp"), "is a part of"),
    case("text", "offload_activations", BLOCKS, "changed in place", least_kib=0,
         options={"spoils": True}),
)  # fmt: skip
# Ways to use gradients that go with techniques that free them early; the others are refused.
ANYHOW = (
    "usual", "zeroed_by_the_model", "zeroed_by_parts", "zeroed_by_hand", "by_closure",
    "stepped_by_zeros", "stepped_by_zeros_of_the_model",
)  # fmt: skip
BEFORE_THE_STEP = (
    "scaled_before_the_step", "a_step_left_out", "accumulated", "decayed_between",
    "weights_decayed_between", "evaluated_between",
)  # fmt: skip
NEITHER = (
    "never_zeroed", "zeroed_in_part", "zeroed_by_hand_in_place", "read_after", "stepped_twice",
    "by_two_optimizers",
)  # fmt: skip
FREED = tuple(
    case("chain", technique, (), None if is_fine else " does not go with ", way=way)
    for way in (*ANYHOW, *BEFORE_THE_STEP, *NEITHER)
    for technique in ("free_gradients", "optimizer_in_backward")
    for is_fine in [way in ANYHOW or (way in BEFORE_THE_STEP and technique == "free_gradients")]
)
# Modules whose second run starts from the state of the first, but for these.
AGAIN = (
    "Counts", "Collects", "Routes", "DrawsByPython", "DrawsByNumpy", "ReadsContext", "SumsInPlace",
    "AddsInPlace", "AddsAfter",
)  # fmt: skip
NOT_AGAIN = {
    ("SumsInPlace", "checkpoint"): "take it out of the plan",
    ("SumsInPlace", "selective_checkpoint"): "take it out of the plan",
    ("AddsInPlace", "selective_checkpoint"): "changes in place what is saved",
    ("AddsAfter", "selective_checkpoint"): "changes in place what is saved",
}
RUN_AGAIN = tuple(
    case(program, technique, "block", NOT_AGAIN.get((program, technique)))
    for program in AGAIN
    for technique in ("checkpoint", "selective_checkpoint")
)


ALL = (
    *of_models(), *of_kinds(), *BIT_FOR_BIT, *ROUNDED, *OTHERS, *REFUSED, *FREED, *RUN_AGAIN,
)  # fmt: skip
# Of techniques that need a package, which an environment may lack.
NEEDY = tuple(one for one in ALL if any(TECHNIQUES[name].needs for name, _, _ in one.actions))


@dataclass(frozen=True, slots=True)
class Share:
    """Some of many cases, spread over all of them; they are trained in one process."""

    name: str
    cases: Sequence[Case]

    def __str__(self) -> str:
        """As the name of a test."""
        return self.name


def shares(name: str, cases: Sequence[Case], size: int) -> tuple[Share, ...]:
    """Cases in shares of about a size."""
    count = len(cases) // size
    return tuple(
        Share(f"{name}, share {number} of {count}", cases[number::count]) for number in range(count)
    )


# transformers alone takes two seconds to import.
OF_TRANSFORMERS = {"small_llama", *MODELS} - {"resnet", "mlp"}
OWN = tuple(
    one
    for one in ALL
    if one not in NEEDY and ("seed" in one.more or one.program not in OF_TRANSFORMERS)
)
FOREIGN = tuple(one for one in ALL if one not in NEEDY and one not in OWN)
PROGRAMS, PROGRAMS_OF_TRANSFORMERS = (
    shares("programs", OWN, 18),
    shares("transformers", FOREIGN, 10),
)


@dataclass(frozen=True, slots=True)
class Drawn:
    """Plans of several techniques that are drawn.

    Attributes:
        words: the program that draws them, and its words before the first number.
        after: its words after the last.
        night: how many are drawn by night, and by day so many with each visit.
        day: see there.
    """

    words: tuple[str, ...]
    after: tuple[str, ...] = ()
    night: int = 50
    day: int = 4

    def __str__(self) -> str:
        """As the name of a test."""
        return " ".join((*self.words, *self.after))


MIXED = tuple(Drawn(("plans/arithmetic.py", "mixed"), (model,)) for model in MODELS)
FAULTS = tuple(Drawn(("plans/arithmetic.py", "faults"), (model,)) for model in MODELS)
KINDS_DRAWN = (Drawn(("plans/matrix.py", "drawn"), night=500, day=15),)

MANY = 50
FAULT_PLACES = {"forward", "backward", "hook", "step", "apply"}


@dataclass(frozen=True, slots=True)
class Scripts:
    """Ways in which scripts that know nothing of plans train a stack of blocks (plans/loops.py),
    with how many steps each trains, and where the stack is in what they train.
    """

    ways: Mapping[str, int]
    model: str = "Stack"
    prefix: str = ""

    def __str__(self) -> str:
        """As the name of a test."""
        return ",".join(self.ways)


DEPTH, PARAMETERS = 4, 132_352
SCRIPTS = (
    Scripts({"plain": 3, "ddp": 3, "averaged": 1}),
    Scripts({"evaluates_first": 3, "adversaries": 3, "fsdp": 3}),
    Scripts({"calls_parts": 3, "folds": 6, "saved_whole": 1, "catches_all": 9}),
)
# These take longer: they compile, or import much.
TRAINERS = (
    Scripts({"compiled": 3, "with_accelerate": 3}),
    Scripts({"compiled_in_place": 3, "with_trainer": 3}),
    Scripts({"with_lightning": 3}, "Task", "model."),
)

STACK = tuple(f"blocks.{number}" for number in range(DEPTH))
AVERAGED = Action("data_parallel")
SHARDED = Action("shard", STACK)
RANK_PLANS = {
    "DDP": (AVERAGED,),
    "ZeRO-1": (AVERAGED, Action("zero_optimizer")),
    "ZeRO-2": (replace(SHARDED, settings={"keeps_gathered": True}),),
    "ZeRO-3": (SHARDED,),
    "ZeRO-3 and others": (Action("checkpoint", STACK), Action("free_gradients"), SHARDED),
}


@dataclass(frozen=True, slots=True)
class Ranks:
    """A script for one process on two ranks under a plan (plans/ranks.py).

    Attributes:
        plan: of `RANK_PLANS`.
        how: the script goes about it.
        within: what losses and parameters may differ by: a norm over shares of gradients is summed
            in another order than one over whole ones, which rounds a step otherwise.
    """

    plan: str
    how: str
    within: float = 0.0

    def __str__(self) -> str:
        """As the name of a test."""
        return f"{self.plan} {self.how}"


RANKS = (
    Ranks("ZeRO-1", "clips"), Ranks("ZeRO-3", "moved"), Ranks("DDP", "moved"),
    Ranks("ZeRO-3 and others", "late"), Ranks("ZeRO-2", "late"),
    Ranks("ZeRO-3", "clips", 3 * 2**-23), Ranks("DDP", "clips"), Ranks("ZeRO-3", "still"),
)  # fmt: skip

TRAININGS = Table("trainings under a plan", PROGRAMS, 1, 5)
OF_MODELS = Table("trainings of transformers' models under a plan", PROGRAMS_OF_TRANSFORMERS, 0, 6)
OF_MIXED = Table("trainings under drawn plans", MIXED, 1, 2)
OF_FAULTS = Table("exceptions under drawn plans", FAULTS, 1, 2)
OF_DRAWN = Table("techniques on drawn models", KINDS_DRAWN, 1)
OF_SCRIPTS = Table("scripts under a plan", SCRIPTS, 0, 1)
OF_TRAINERS = Table("compiled scripts and trainers under a plan", TRAINERS, 0, 1)
ON_RANKS = Table("ranks under a plan", RANKS, 1, 2)
TABLES = (TRAININGS, OF_MODELS, OF_MIXED, OF_FAULTS, OF_DRAWN, OF_SCRIPTS, OF_TRAINERS, ON_RANKS)


def judge(python: Path, cases: Sequence[Case], device: str = "cpu") -> list[dict[str, Any]]:
    """What came of cases: a document each; see the program."""
    documents = json.dumps([one.document for one in cases])
    found: list[dict[str, Any]] = printed_by(python, "plans/same_training.py", device, documents)
    return found


def check_cases(python: Path, cases: Sequence[Case]) -> None:
    """Each case came as near as it has to, or was refused with the words that are expected."""
    found = zip(cases, judge(python, cases), strict=True)
    wrong = [f"{one}: {why}" for one, document in found if (why := why_wrong(one, document))]
    assert not wrong, f"{len(wrong)} of {len(cases)} trainings:\n" + "\n".join(wrong[:9])


def why_wrong(one: Case, found: Mapping[str, Any]) -> str:
    """What is wrong with what came of a case; "" if nothing is."""
    expected = one.expected
    if found.get("left over"):
        return f"left over: {found['left over'][:3]}"
    if "refused" in found:
        is_right = isinstance(expected, str) and expected in found["refused"]
        return "" if is_right else f"expected {expected}, but was refused: {found['refused']}"
    if "raised" in found or isinstance(expected, str):
        return f"expected {expected!r}, but: {found}"
    if not found["same keys"] and not isinstance(expected, Other):
        return "other keys in the state_dict"
    if expected is None:
        return "" if found["equal"] else f"not equal bit for bit, off by {found['off']}"
    if not found["same random numbers"]:
        return "draws other random numbers"
    off = found["off"]
    if isinstance(expected, Other):
        begins_alike = found["same first loss"]
        return "" if off and begins_alike == expected.begins_alike else f"{expected}, but: {found}"
    is_near = off.get("losses", 0.0) <= expected.losses
    if expected.rest is not None:
        is_near &= all(value <= expected.rest for value in off.values())
    return "" if is_near else f"off by {off}, more than {expected}"


def check_drawn(python: Path, drawn: Drawn, first: int, last: int) -> None:
    """Plans that were drawn with some numbers train the same, or say that they do not go; after an
    exception under one, nothing is left and the training goes on as without.
    """
    words = (*drawn.words, str(first), str(last), *drawn.after)
    found: list[dict[str, Any]] = printed_by(python, *words)
    wrong = [f"{one}" for one in found if not is_fine(one)]
    assert len(found) == last - first
    assert not wrong, f"{len(wrong)} of {len(found)} of {words}:\n" + "\n".join(wrong[:9])
    if len(found) >= MANY:
        check_variety(found)


def is_fine(found: Mapping[str, Any]) -> bool:
    """Whether a case of a drawn plan came out well."""
    if "result" in found:  # of matrix.py, which says so itself
        return str(found["result"]).startswith(("applied", "refused: ", "not there"))
    if found.get("left over"):
        return False
    if "refused" in found:
        return str(found["refused"]).startswith("'")  # found out only while the program runs
    if "fault" in found:
        return bool(found["equal"])
    reorders = any(TECHNIQUES[one["technique"]].reorders for one in found["actions"])
    is_near = reorders and all(value <= SINGLE for value in found["off"].values())
    return bool(found["same keys"] and (found["equal"] or is_near))


def check_variety(found: Sequence[Mapping[str, Any]]) -> None:
    """What was drawn is worth it: most is applied, and exceptions come in each kind of place."""
    count = len(found)
    if "result" in found[0]:
        assert sum(one["result"] == "applied" for one in found) > count // 2
    elif any("fault" in one for one in found):
        assert {one.get("fault") for one in found} >= FAULT_PLACES
    else:
        assert sum("refused" in one for one in found) <= count // 10
        assert sum(len(one["actions"]) > 1 for one in found) > count // 2


def plan_for_a_stack(
    torch_version: str, *actions: Action, prefix: str = "", **changes: Any
) -> Plan:
    """A plan for a stack of blocks, or for a model that holds it; it checkpoints all blocks."""
    blocks = tuple(f"{prefix}{name}" for name in STACK)
    named = dict.fromkeys(blocks, "Block")
    made_for = MadeFor(torch_version, "Stack", PARAMETERS, named, "AdamW")
    return Plan(actions or (Action("checkpoint", blocks),), replace(made_for, **changes))


def run_script(python: Path, directory: Path, plan: Plan | None, *words: str) -> Done:
    """Runs plans/loops.py in a directory, under a plan or as it is."""
    verb: tuple[str, ...] = ()
    if plan is not None:
        plan.save(directory / "plan.json", force=True)
        verb = ("exec", "--plan", str(directory / "plan.json"))
    return run_alone(python, "plans/loops.py", *words, verb=verb, directory=directory)


def rows(stdout: str) -> dict[str, Any]:
    """What each way has printed, by its name."""
    lines = [json.loads(line) for line in stdout.splitlines() if line.startswith('{"way"')]
    return {line["way"]: line for line in lines}


def check_scripts(python: Path, torch_version: str, directory: Path, scripts: Scripts) -> None:
    """Scripts train as they did, and their blocks run again."""
    plan = plan_for_a_stack(torch_version, prefix=scripts.prefix, model=scripts.model)
    ran = [run_script(python, directory, one, str(scripts)) for one in (None, plan)]
    assert not any(one.returncode for one in ran), [one.stderr for one in ran]
    alone, under = (rows(one.stdout) for one in ran)
    assert alone.keys() == under.keys() == scripts.ways.keys()
    for way, num_steps in scripts.ways.items():
        assert under[way]["losses"] == alone[way]["losses"], way
        # Two layers a block; they are not counted in what is compiled.
        again = 0 if "compiled" in way else num_steps * DEPTH * 2
        assert under[way]["calls"] - alone[way]["calls"] == again, way


def check_ranks(python: Path, torch_version: str, directory: Path, ranks: Ranks) -> None:
    """Ranks train as the mean of their gradients would, which one process works out by hand."""
    plan = plan_for_a_stack(torch_version, *RANK_PLANS[ranks.plan])
    plan.save(directory / "plan.json")
    words = (str(directory), "cpu", ranks.how)
    verb = ("exec", "--plan", str(directory / "plan.json"))
    done = run_ranks(python, "plans/ranks.py", *words, verb=verb)
    assert not any(one.returncode for one in done), [one.stderr for one in done]
    found = printed_by(python, "plans/ranks_by_hand.py", str(directory), "2", ranks.how)
    assert found["rows"] == [True, True]
    assert found["num_rows"] == found["all_rows"], "every row is one rank's"
    assert None not in found["model"] + found["states"], "keys and kinds are as without a plan"
    assert max(found["losses"] + found["model"] + found["states"]) <= ranks.within
    assert found["drawn"] == 2, "what ranks draw at random is their own"
