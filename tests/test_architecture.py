"""The house rules that a machine can check: layers, light imports, frozen flags, names."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import gc
import itertools
import json
import re
import subprocess
import sys
import typing
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import click
import pytest
from tests.rows import each
from tests.variables import VARIABLES, Variable

import ullage
from ullage.cli import VERBS, cli
from ullage.ground.protocol import variables
from ullage.players.eager.training.recipe import PRECISIONS
from ullage.verbs import SECTIONS
from ullage.verbs.command_line.command import Verb
from ullage.verbs.estimate.options import Precision

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "ullage"

# A room imports itself and the rooms of the rows above its own; those of one row do not import each
# other. A room is a folder, a file right below ullage, or "options": the options of every verb.
LAYERS = (
    ("ground",),
    ("options", "facts", "log", "answers", "operate/doors"),
    ("clock", "players/inside", "operate/watch"),
    ("players/eager", "act"),
    ("players/phantom", "operate/front"),
    ("explain",),
    ("search",),
    ("operate/serve",),
    ("verbs",),
    ("cli", "pytest_plugin", "__init__"),
)

MAX_ROWS, MAX_ROOMS, MAX_ARROWS = 10, 20, 110
# The modules right below ullage; everything else has a folder.
ROOT_FILES = {"__init__", "cli", "pytest_plugin"}

# Folders of verbs/ that are no verb: what several share.
SHARED_BY_VERBS = {"command_line", "document", "page", "testing", "text", "views"}

# The files of a verb, by their roles: text.py, or what it answers besides: sweep_text.py,
# text_parts.py.
ROLES = ("command", "document", "function", "options", "page", "text")

OPTIONS = "The options of verbs (verbs/*/options.py); the user's process reads them, too."
ROW_OF = {name: row for row, names in enumerate(LAYERS) for name in names}

# What runs inside the user's process, where torch is.
MAY_IMPORT_TORCH = (
    "act/guard",
    "act/loaders",
    "act/techniques",
    "ground/programs",
    "operate/serve/clock.py",
    "operate/serve/transformers",
    "operate/serve/vllm",
    "players/inside",
    "players/phantom/bootstrap.py",
    "players/phantom/fork.py",
    "players/phantom/site",
    "verbs/testing/child.py",
    "verbs/testing/meter.py",
)

MAX_FILES_OF_A_FOLDER = 20
MAX_FILES_OF_A_NAME = 3
POSITIONAL_PARAMETERS = 5

# Adding a flag is a decision: it is made here too.
FLAGS = {
    "run": {
        "program", "--gpu", "--gpus", "--memory", "--capability", "--budget", "--world-size",
        "--rank", "--ranks", "--time", "--price", "--interconnect", "--measured", "--clock",
        "--python", "--steps", "--sweep", "--plan", "--guard", "--resume", "--try-remedies",
        "--alloc-conf", "--dummy-weights", "--assume", "--nvml", "--snapshot", "-o", "--output",
        "--force", "--json", "--full",
    },
    "estimate": {
        "model", "--gpu", "--which-gpu", "--largest", "--full", "--batch", "--length", "--image",
        "--precision", "--gradients", "--optimizer", "--checkpointing", "--attention",
        "--accumulation", "--zeroes-late", "--loss", "--packed", "--compile", "--library",
        "--torch", "--time", "--price", "--interconnect", "--lora", "--lora-targets",
        "--lora-dtype", "--lora-dropout", "--quantize", "--data", "--sharding", "--buckets",
        "--tensor", "--sequence-parallel", "--context-parallel", "--expert-parallel", "--pipeline",
        "--stage", "--micro-batches", "--offload", "--nvme", "-o", "--output", "--force", "--json",
    },
    "capacity": {
        "model", "parts", "--gpu", "--which-gpu", "--full", "--users", "--context", "--image",
        "--offload", "--traffic", "--slo", "--time", "--price", "--interconnect", "--engine",
        "--engine-version", "--tensor", "--weights", "--kv", "--kv-bytes", "--utilization",
        "--memory", "--block-size", "--batched-tokens", "--max-seqs", "--eager", "--lora-slots",
        "--draft", "-o", "--output", "--force", "--json",
    },
    "serve": {
        "program", "--gpu", "--traffic", "--slo", "--python", "--loads", "--cached", "-o",
        "--output", "--force", "--json",
    },
    "smallest": {
        "program", "--gpu", "--traffic", "--slo", "--allow", "--python", "-o", "--output",
        "--force", "--json",
    },
    "record": {
        "program", "--mode", "--snapshot", "--python", "--kernels", "-o", "--output", "--force",
        "--json", "--full",
    },
    "explain": {
        "file", "--request", "--try-remedies", "--python", "--share", "--hide", "-o", "--output",
        "--force", "--json", "--full",
    },
    "what-if": {"file", "--gpu", "--memory", "--python", "-o", "--output", "--force", "--json"},
    "diff": {"before", "after", "-o", "--output", "--force", "--json"},
    "watch": {
        "--once", "--json", "--interval", "--record", "--replay", "--alerts", "--config",
        "--listen", "--token-file", "--certificate", "--key",
    },
    "fit": {
        "program", "--gpu", "--gpus", "--memory", "--budget", "--allow", "--objective", "--price",
        "--ladder", "--smallest-gpu", "--minutes", "--python", "--steps", "--alloc-conf",
        "--dummy-weights", "--assume", "--measured", "-o", "--output", "--force", "--json",
    },
    "largest": {
        "program", "--gpu", "--memory", "--budget", "--vary", "--multiple-of", "--allow",
        "--python", "--steps", "--alloc-conf", "--dummy-weights", "--assume", "-o", "--output",
        "--force", "--json",
    },
    "exec": {"program", "--plan", "--guard", "--resume", "--cap", "--python"},
    "check": {
        "scenarios", "--config", "--python", "--no-cache", "-o", "--output", "--force", "--json",
        "--write", "--pages",
    },
    "front": {"--config", "--check"},
    "ui": {"--port", "--no-browser", "--python"},
    "env": {"--torch", "-r", "--requirement", "--with-triton", "--python", "directory", "--force"},
    "gpus": {"name", "--json"},
    "doctor": {"--python", "--schema", "--json"},
    "nvml": {"directory", "command", "--gpu", "--gpus"},
}  # fmt: skip
# Options of all verbs together: a new one needs one that goes.
MOST_OPTIONS = 215


FILES = sorted(SOURCE.rglob("*.py"))
C_FILES = sorted(SOURCE.rglob("*.[ch]"))


def in_folders(*names: str) -> Iterator[Path]:
    """The files of some folders of the package."""
    return (path for path in FILES if path.relative_to(SOURCE).parts[0] in names)


def label(path: Path) -> str:
    """How a file is called in the name of a test."""
    return path.relative_to(SOURCE).as_posix()


def is_program(path: Path) -> bool:
    """True for a script that ullage starts inside the user's torch."""
    return label(path).startswith("ground/programs/")


def is_of_command(path: Path) -> bool:
    """True for a file of the command line, or of a verb's Python function."""
    return label(path).startswith(("cli.py", "verbs/command_line/")) or (
        path.stem.endswith(("command", "function")) and label(path).startswith("verbs/")
    )


def room_of(path: Path) -> str:
    """The room of LAYERS that a file belongs to."""
    name = label(path)
    if re.fullmatch(r"verbs/\w+/options\.py", name):
        return "options"
    parts = name.removesuffix(".py").split("/")
    return parts[0] if parts[0] in ROW_OF or len(parts) == 1 else "/".join(parts[:2])


@cache
def parse(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a file's syntax tree."""
    nodes = tuple(ast.walk(parse(path)))
    # They stay, and the collector of garbage would look at them all, over and over: half the time.
    gc.freeze()
    return nodes


@cache
def imports_of(path: Path) -> tuple[str, ...]:
    """Every module that a file imports, within functions too."""
    return tuple(imports(nodes_of(path)))


def imports(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Every module that one of the nodes imports, `from a import b` as a.b."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method of a file."""
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def rooms_that(path: Path) -> Iterator[tuple[str, str]]:
    """Each module of ullage that a file imports, with its room."""
    for module in imports_of(path):
        name = module
        while name and name not in modules():
            name = name.rpartition(".")[0]
        if name.startswith("ullage"):
            yield module, room_of(modules()[name])


@each("path", FILES, name=label)
def test_imports_point_downward(path: Path) -> None:
    room = room_of(path)
    assert room in ROW_OF, f"{room!r} has no row in LAYERS"
    for module, used in rooms_that(path):
        assert used == room or ROW_OF[used] < ROW_OF[room], f"{room} imports {module}"


@each("path", FILES, name=label)
def test_of_the_core_only_verbs_import_what_runs_beside_a_job(path: Path) -> None:
    """`ullage run` loads no server and no watcher of GPUs."""
    if not room_of(path).startswith(("operate/", "verbs")):
        assert not [module for module, used in rooms_that(path) if used.startswith("operate/")]


def test_there_are_few_rooms_and_few_arrows_among_them() -> None:
    rooms = {room_of(path) for path in FILES}
    arrows = {
        (room_of(path), used)
        for path in FILES
        for _, used in rooms_that(path)
        if used != room_of(path)
    }
    print(f"{len(rooms)} rooms, {len(arrows)} arrows")
    for room in sorted(rooms):
        print(f"{room}: {', '.join(sorted(used for user, used in arrows if user == room))}")
    assert rooms == {*ROW_OF} and len(rooms) <= MAX_ROOMS
    assert len(arrows) <= MAX_ARROWS


@each("path", FILES, name=label)
def test_torch_is_imported_only_where_the_users_program_runs(path: Path) -> None:
    if not label(path).startswith(MAY_IMPORT_TORCH):
        used = {module.partition(".")[0] for module in imports_of(path)}
        assert "torch" not in used


@each(
    "path",
    [path for path in FILES if room_of(path) in {"ground", "options"} and not is_program(path)],
    name=label,
)
def test_the_lowest_row_needs_the_standard_library_alone(path: Path) -> None:
    used = {module.partition(".")[0] for module in imports_of(path)}
    assert used <= sys.stdlib_module_names | {"ullage"}


@each("path", [path for path in FILES if is_program(path)], name=label)
def test_programs_know_nothing_of_ullage(path: Path) -> None:
    used = {module.partition(".")[0] for module in imports_of(path)}
    assert "ullage" not in used


def picture() -> list[str]:
    """LAYERS as CONTRIBUTING.md shows it: each room with the first sentence of its docstring."""
    lines = []
    for row, names in reversed([*enumerate(LAYERS, start=1)]):
        for name in names:
            folder, file = SOURCE / name / "__init__.py", SOURCE / f"{name}.py"
            text = OPTIONS
            if name != "options":
                text = ast.get_docstring(parse(folder if folder.exists() else file)) or ""
            sentence = re.split(r"(?<=\.)\s", " ".join(text.split("\n\n")[0].split()))[0]
            lines.append(f"{row if name == names[0] else '':>2}  {name:15}  {sentence}")
    return lines


def test_the_picture_of_the_house_is_that_of_the_layers() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    shown = page.partition("```text\n")[2].partition("```")[0].splitlines()
    # Lines to take out of the page, with a minus, and lines to put there, with a plus.
    changes = [*difflib.unified_diff(shown, picture(), "CONTRIBUTING.md", "LAYERS", "", "", 0, "")]
    assert not changes, "change the picture in CONTRIBUTING.md:\n" + "\n".join(changes)


def test_there_are_few_rows_and_few_files_at_the_root() -> None:
    assert len(LAYERS) <= MAX_ROWS
    assert {path.stem for path in SOURCE.glob("*.py")} == ROOT_FILES


# They run before ullage can be imported, or without it, and spell the variables of the protocol.
# What draws characters: the renderer of blocks, and the live page of watch, which is no block.
RICH = (
    "answers/text.py", "verbs/watch/text", "verbs/watch/alerts_text.py", "verbs/watch/terminal"
)  # fmt: skip
TAG = re.compile(
    r"</?(?:a|b|body|code|div|figure|h[1-6]|html|i|li|meta|p|pre|script|span|style|svg|t[dhr]|table|ul)"
    r"(?: [^<>]*)?>"
)


@each("path", FILES, name=label)
def test_only_renderers_know_the_terminal_and_html(path: Path) -> None:
    if not label(path).startswith(RICH):
        assert not [module for module in imports_of(path) if module.partition(".")[0] == "rich"]
    if room_of(path) != "answers":
        texts = [node.value for node in nodes_of(path) if isinstance(node, ast.Constant)]
        assert not [text for text in texts if isinstance(text, str) and TAG.search(text)]


SPELLING = ("players/phantom/site/sitecustomize.py", "ground/programs")
IN_QUOTES = re.compile(r"""["'](ULLAGE_[A-Z_]+)["']""")


def spelled_variables(path: Path) -> set[str]:
    """The ULLAGE_* variables that are spelled in a string of the file."""
    return set(IN_QUOTES.findall(path.read_text(encoding="utf-8")))


@each("path", [*FILES, *C_FILES], name=label)
def test_variables_are_spelled_in_the_protocol_alone(path: Path) -> None:
    spelled = spelled_variables(path)
    if path.suffix == ".py" and not label(path).startswith((*SPELLING, "ground/protocol/")):
        assert not spelled
    assert spelled <= {variable.name for variable in VARIABLES}


@each("variable", VARIABLES, name=lambda variable: variable.name)
def test_a_variable_names_its_writers_and_readers(variable: Variable) -> None:
    for user in (*variable.writers, *variable.readers):
        path = SOURCE / user
        assert variable.name in spelled_variables(path) or any(
            module.startswith("ullage.ground.protocol.") for module in imports_of(path)
        ), user


@each("path", [*FILES, *C_FILES], name=label)
def test_who_uses_a_variable_is_named_by_it(path: Path) -> None:
    used = spelled_variables(path)
    if path.suffix == ".py":
        prefix = "ullage.ground.protocol.variables."
        used |= {
            getattr(variables, name)
            for module in imports_of(path)
            if module.startswith(prefix) and (name := module.removeprefix(prefix)).isupper()
        }
    if label(path).startswith("ground/protocol/"):
        return
    for variable in VARIABLES:
        if variable.name in used:
            assert label(path) in {*variable.writers, *variable.readers}, variable.name


# Python starts these in a process of their own, by their path or with -m.
STARTED = (
    "players/phantom/bootstrap.py", "players/phantom/site/", "ground/programs/",
    "operate/serve/transformers/entrance.py", "operate/serve/vllm/entrance.py",
)  # fmt: skip
# `clock/` is read by its benchmark alone so far; Ray Serve is given the name of a class in
# `operate/front/cluster/`.
ENTRANCES = (
    "__init__.py", "cli.py", "verbs/ui/", "verbs/testing/", "verbs/command_line/",
    "pytest_plugin.py", "act/callbacks/", "clock/",
    "operate/front/cluster/", *STARTED,
)  # fmt: skip
# What stands in a text and is a module's name: `python -m`, or a table of modules to import when
# one is asked for.
MODULE_NAME = re.compile(r"(?:-m )?(ullage(?:\.\w+)+)(?::\w+)?|((?:\w+\.)*\w+):\w+")


@cache
def modules() -> dict[str, Path]:
    """Every file of ullage by the name that imports it."""
    names = {}
    for path in FILES:
        parts = ("ullage", *path.relative_to(SOURCE).with_suffix("").parts)
        names[".".join(parts).removesuffix(".__init__")] = path
    return names


def modules_of_texts(path: Path) -> Iterator[str]:
    """Modules that a file names in a text: in full, or below its own package as "module:Class"."""
    package = ".".join(("ullage", *path.relative_to(SOURCE).parent.parts))
    for node in nodes_of(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            match = MODULE_NAME.fullmatch(node.value)
            if match is not None:
                yield match[1] or f"{package}.{match[2]}"


def is_entrance(path: Path) -> bool:
    """True for a file that is imported by its name, from a command line or by a user."""
    name = label(path)
    return name.startswith(ENTRANCES) or (
        name.startswith("verbs/") and name.endswith(("command.py", "function.py"))
    )


def test_every_module_is_reached_from_an_entrance() -> None:
    waiting = {name for name, path in modules().items() if is_entrance(path)}
    reached: set[str] = set()
    while waiting:
        name = waiting.pop()
        reached.add(name)
        path = modules()[name]
        parents = {name.rpartition(".")[0]} - {""}
        names = {*imports_of(path), *modules_of_texts(path)}
        # `from a import b` is a.b, and b may be a name in the module a.
        names |= {each.rpartition(".")[0] for each in names}
        waiting |= ((names | parents) & modules().keys()) - reached
    assert sorted(modules().keys() - reached) == []


IN_A_TEXT = re.compile(r"\bullage(?:/[a-z_]+){2,}|^ullage(?:\.[a-z_]+){2,}$")
NOT_OURS = {"ullage.schema.json"}


def named_in_texts(path: Path) -> set[str]:
    """The files, folders, modules and members of ullage that a file's texts name:
    "ullage/act/guard", "ullage.act.guard", ("ullage", "act", "guard").
    """
    names: set[str] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            names |= set(IN_A_TEXT.findall(node.value))
        elif isinstance(node, ast.Tuple):
            words = [each.value for each in node.elts if isinstance(each, ast.Constant)]
            if words[2:] and words[0] == "ullage" and len(words) == len(node.elts):
                names.add("/".join(map(str, words)))
    return names - NOT_OURS


def test_what_a_text_names_of_ullage_is_there() -> None:
    """A file that moves leaves such texts behind, and no import says so."""
    for path in (*FILES, *sorted(ROOT.glob("tests/programs/**/*.py"))):
        for name in named_in_texts(path):
            place = SOURCE.parent / name.replace(".", "/")
            # Of a module, a text may name a member.
            places = (place, place.with_suffix(".py"), place.parent.with_suffix(".py"))
            is_public = "." in name and name.split(".")[1] in ullage.__all__
            assert is_public or any(each.exists() for each in places), f"{path}: {name}"


def run_time_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes below a tree's root but those that only a type checker looks at."""
    waiting = [tree]
    while waiting:
        for child in ast.iter_child_nodes(waiting.pop()):
            if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
                continue
            yield child
            waiting.append(child)


def import_graph() -> dict[str, set[str]]:
    """Each module, without "ullage.", with the modules that it imports, wherever it does so."""
    paths = {label(path).removesuffix(".py").replace("/", "."): path for path in FILES}
    modules = {name.removesuffix(".__init__"): path for name, path in paths.items()}
    graph: dict[str, set[str]] = {name: set() for name in modules}
    for name, path in modules.items():
        for target in imports(run_time_nodes(parse(path))):
            module = target.removeprefix("ullage.") if target.startswith("ullage.") else ""
            while module and module not in modules:
                module = module.rpartition(".")[0]
            graph[name] |= {module} - {"", name}
    return graph


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    """The modules that one imports, directly or by way of others."""
    modules: set[str] = set()
    waiting = [start]
    while waiting:
        following = graph[waiting.pop()] - modules
        modules |= following
        waiting += following
    return modules


def test_no_files_import_each_other_in_a_circle() -> None:
    """Imports within functions count, those under `if TYPE_CHECKING` do not: they are for types,
    and nothing is executed by them.
    """
    graph = import_graph()
    below = {name: reachable(graph, name) for name in graph}
    circles = {
        tuple(sorted(other for other in below[name] if name in below[other]))
        for name in graph
        if name in below[name]
    }
    assert circles == set()


def test_a_folder_of_many_files_has_subfolders() -> None:
    """Of Python files: a folder of C files does not make the others easier to find."""
    counts = Counter(path.parent for path in FILES if path.name != "__init__.py")
    with_subfolders = {path.parent.parent for path in FILES if path.name != "__init__.py"}
    flat = {
        label(folder)
        for folder, count in counts.items()
        if count > MAX_FILES_OF_A_FOLDER and folder not in with_subfolders
    }
    assert flat == set()


def test_no_name_stands_in_many_places() -> None:
    """But for the files of verbs, which are called by their roles."""
    stems = [
        path.stem
        for path in FILES
        if path.stem != "__init__" and not label(path).startswith("verbs/")
    ]
    frequent = {name for name, count in Counter(stems).items() if count > MAX_FILES_OF_A_NAME}
    assert frequent == set()


# Words that name an event, not the thing: as names of variables they say nothing.
PARTICIPLES = {"one", "found", "told", "made", "kept", "held", "seen", "wanted", "named"}
MAX_PARTICIPLES = 8


def test_few_variables_are_named_by_participles() -> None:
    """A ratchet: the limit may only fall."""
    bound = [
        name
        for path in FILES
        for node in nodes_of(path)
        if (name := bound_name(node)) in PARTICIPLES
    ]
    assert len(bound) <= MAX_PARTICIPLES


def bound_name(node: ast.AST) -> str | None:
    """The variable or parameter that a node binds."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    if isinstance(node, ast.arg):
        return node.arg
    return node.name if isinstance(node, ast.ExceptHandler) else None


def loaded_by(code: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after running the code."""
    code += "\nimport json, sys; print('\\n' + json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_ullage_loads_nothing_of_weight() -> None:
    loaded = loaded_by("import ullage")
    assert not loaded & {"torch", "numpy", "rich", "click", "pynvml", "subprocess"}
    assert {name for name in loaded if name.startswith("ullage")} == {
        "ullage",
        "ullage.ground",
        "ullage.ground.version",
    }


def test_help_loads_no_verb() -> None:
    loaded = loaded_by("from ullage.cli import run_cli\nassert run_cli(['--help']) == 0")
    assert not loaded & {"torch", "numpy", "rich", "pynvml"}
    ours = {name for name in loaded if name.startswith("ullage")}
    names = (
        "cli", "ground", "ground.errors", "ground.version", "verbs", "verbs.command_line",
        "verbs.command_line.streams",
    )  # fmt: skip
    assert ours == {"ullage", *(f"ullage.{name}" for name in names)}


# Each verb in a child of an interpreter that has loaded no verb.
HELP_OF_VERBS = """
import json, os, sys
from ullage.cli import VERBS, run_cli
for verb in VERBS:
    if os.fork() == 0:
        code = run_cli([verb, "--help"])
        print("\\n" + json.dumps([verb, code, sorted(sys.modules)]), flush=True)
        os._exit(0)
    os.wait()
"""


def test_the_help_of_a_verb_loads_nothing_of_weight() -> None:
    command = [sys.executable, "-c", HELP_OF_VERBS]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('["')]
    assert [(verb, code) for verb, code, _ in answers] == [(verb, 0) for verb in VERBS], done.stderr
    heavy = {"torch", "numpy", "pynvml"}
    assert not {verb: heavy & {*loaded} for verb, _, loaded in answers if heavy & {*loaded}}


@each("name", ullage.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(ullage, name) is not None


def test_the_public_names_are_those_that_type_checkers_see() -> None:
    tree = parse(SOURCE / "__init__.py")
    (guarded,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {
        alias.name
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen | {"__version__"} == set(ullage.__all__) == set(dir(ullage))


@each("path", FILES, name=label)
def test_a_list_of_names_has_what_a_module_passes_on_alone(path: Path) -> None:
    if path == SOURCE / "__init__.py":
        return
    tree = parse(path)
    lists = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == "__all__"
    ]
    own = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert not own & set(itertools.chain(*lists)), "names are listed twice"


def test_every_verb_has_a_frozen_list_of_flags() -> None:
    assert set(FLAGS) == set(VERBS)


@each("verb", VERBS)
def test_the_flags_are_frozen(verb: str) -> None:
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    flags = {name for parameter in command.params for name in parameter.opts}
    assert flags == FLAGS[verb]


def test_options_are_few_and_none_is_hidden() -> None:
    commands = [cli.get_command(click.Context(cli), verb) for verb in VERBS]
    options = [
        option for command in commands if command is not None for option in command.params
        if isinstance(option, click.Option)
    ]  # fmt: skip
    assert len(VERBS) <= 20 and len(options) <= MOST_OPTIONS
    assert not [option.name for option in options if option.hidden]


@each("verb", VERBS)
def test_a_verb_is_a_folder(verb: str) -> None:
    folder = SOURCE / "verbs" / verb.replace("-", "_")
    stems = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert "command" in stems
    if verb != "ui":  # it is an application besides
        strange = {stem for stem in stems if not {*ROLES} & {*stem.split("_")}}
        assert strange == set()


def test_what_is_no_verb_is_shared_by_verbs() -> None:
    folders = {path.name for path in (SOURCE / "verbs").iterdir() if any(path.glob("*.py"))}
    assert folders - {verb.replace("-", "_") for verb in VERBS} == SHARED_BY_VERBS


@each("path", [path for path in FILES if is_of_command(path)], name=label)
def test_what_a_function_takes_is_typed(path: Path) -> None:
    for function in functions(path):
        rest = function.args.kwarg
        taken = "" if rest is None or rest.annotation is None else ast.unparse(rest.annotation)
        assert taken != "Any", f"{function.name} takes **{rest.arg if rest else ''}: Any"


@each("verb", VERBS)
def test_a_verb_is_made_of_its_records(verb: str) -> None:
    command = cli.get_command(click.Context(cli), verb)
    assert isinstance(command, Verb)
    fields = {field.name for record in command.records for field in dataclasses.fields(record)}
    assert {parameter.name for parameter in command.params} <= fields
    assert sum(path.read_text().count("click.option(") for path in in_folders("verbs")) == 0


def test_a_section_of_options_is_that_of_a_verb() -> None:
    assert {*SECTIONS} <= {*VERBS} - {"check", "front"}


def test_the_choices_of_a_recipe_are_those_of_its_option() -> None:
    assert typing.get_args(Precision) == (*PRECISIONS,)


@each("path", FILES, name=label)
def test_functions_have_few_positional_parameters(path: Path) -> None:
    for function in functions(path):
        names = [argument.arg for argument in function.args.args]
        count = len([name for name in names if name not in {"self", "cls"}])
        assert count <= POSITIONAL_PARAMETERS, f"{function.name}: {count} parameters"


@each("path", FILES, name=label)
def test_what_is_public_says_what_it_is_for(path: Path) -> None:
    tree = parse(path)
    assert ast.get_docstring(tree), "the module has no docstring"
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            assert ast.get_docstring(node), f"{node.name} has no docstring"


@each("path", FILES, name=label)
def test_records_are_frozen(path: Path) -> None:
    for node in nodes_of(path):
        if not isinstance(node, ast.ClassDef):
            continue
        for decorator in node.decorator_list:
            text = ast.unparse(decorator)
            if text.startswith("dataclass"):
                assert "frozen=True" in text and "slots=True" in text, node.name


@each("path", [*FILES, *C_FILES], name=label)
def test_names_say_something(path: Path) -> None:
    assert path.stem not in {"utils", "util", "helpers", "common", "manager", "core", "misc"}
    if path.suffix == ".py":
        for node in parse(path).body:
            if isinstance(node, ast.FunctionDef):
                assert not re.match(r"_?(get|do|process|handle)_", node.name), node.name


def test_no_file_names_a_place_on_somebodys_machine() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    ).stdout.splitlines()  # fmt: skip
    if not listed:
        pytest.skip("not a git checkout: the project's files cannot be listed")
    place = re.compile(r"(?<![\w.])/(?:root|work|home/\w+|Users/\w+|mnt|scratch)/")
    texts = {".py", ".c", ".h", ".inc", ".toml", ".md", ".txt", ".json", ""}
    paths = (ROOT / name for name in listed)
    found = {
        path.relative_to(ROOT).as_posix(): match[0]
        for path in paths
        if path.suffix in texts and path.is_file()
        and (match := place.search(path.read_text(encoding="utf-8", errors="replace")))
    }  # fmt: skip
    assert found == {}
