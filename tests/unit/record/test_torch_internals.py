"""The table of torch's private names has each one that the source uses, and no other."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

import ullage
from ullage.players.inside.torch_internals import INTERNALS, explain_missing, find, list_losses

SOURCE = Path(ullage.__file__).parent
TABLE = SOURCE / "players" / "inside" / "torch_internals.py"
# What runs beside torch; elsewhere a leading underscore is ullage's own.
PACKAGES = (
    "players/inside", "act/techniques", "explain/whatif", "verbs/testing", "ground/programs",
    "players/phantom",
)  # fmt: skip
PRIVATE = re.compile(r"_[A-Za-z]\w*")
PRIVATE_PATH = re.compile(r"torch(\.\w+)*\._[A-Za-z]\w*(\.\w+)*\.?|_[A-Za-z]\w*")
# Private names of others, and texts that look like a name.
NOT_OF_TORCH = {
    "Python": {
        "_ModuleLockManager", "_bootstrap", "_bootstrap_inner", "_current_frames", "_exit",
        "_fields", "_getframe", "_initializing", "_replace",
    },
    "ctypes": {"_NamedFuncPointer"},
    "IPython": {"_oh"},
    "pytest": {"_setupstate", "_tmp_path_factory"},
    "transformers": {"_attn_implementation", "_name_or_path", "_supports_sdpa"},
    "timm": {"_resolve_pretrained_source"},
    "Triton": {"_bench"},
    "vLLM": {"_all_group_ranks_share_shm_group_name", "_run_in_subprocess"},
    "the phantom's library": {"_Fork"},
    "ullage, on objects of torch": {"_late", "_ullage_watched"},
    "ends and beginnings of names": {"_foreach_", "_fused_", "_like"},
    "messages of libraries": {"_alloc_failed"},
}  # fmt: skip


class Names(ast.NodeVisitor):
    """The private names in one file that are not those of the file's own objects."""

    def __init__(self, tree: ast.Module) -> None:
        self.names: set[str] = set()
        self._aliases = {"torch": "torch", "self._torch": "torch"}
        for _ in range(2):  # an alias of an alias
            for node in ast.walk(tree):
                self._learn(node)
        self.visit(tree)

    def _learn(self, node: ast.AST) -> None:
        """`c = torch._C` and `from torch._C import _distributed_c10d as c10d`."""
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            for alias in node.names:
                path = f"{node.module}.{alias.name}"
                self._aliases[alias.asname or alias.name] = path
                self._note(path)
        elif isinstance(node, ast.Assign) and (path := self._path(node.value)) != "torch" and path:
            for target in node.targets:
                self._aliases.setdefault(ast.unparse(target), path)

    def _path(self, node: ast.AST) -> str | None:
        """`self._torch._C.name` as "torch._C.name", and `getattr` with a literal as well."""
        if isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in self._aliases:
            return self._aliases[ast.unparse(node)]
        if isinstance(node, ast.Attribute):
            owner, name = self._path(node.value), node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"getattr", "hasattr"}:
            owner, literal = self._path(node.args[0]), node.args[1]
            name = literal.value if isinstance(literal, ast.Constant) else "?"
        else:
            return None
        return f"{owner}.{name}" if owner else None

    def _note(self, path: str) -> None:
        """Private parts of a path, and what is asked of a private module."""
        parts = path.removesuffix(".").split(".")
        self.names |= {part for part in parts if PRIVATE.fullmatch(part)}
        private = [number for number, part in enumerate(parts) if PRIVATE.fullmatch(part)]
        if private and parts[0] == "torch" and parts[1] != "ops":
            following = parts[private[-1] + 1 : private[-1] + 2]
            self.names |= {part for part in following if re.fullmatch(r"[A-Za-z]\w*", part)}

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """An attribute of torch's, or a private one of an object that is not `self`."""
        path = self._path(node)
        if path is not None:
            self._note(path)
        elif PRIVATE.fullmatch(node.attr) and ast.unparse(node.value) not in {"self", "cls"}:
            self.names.add(node.attr)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """`getattr(torch._C, "name")`."""
        path = self._path(node)
        if path is not None:
            self._note(path)
        self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        """`import torch._dynamo`."""
        for alias in node.names:
            if alias.name.startswith("torch."):
                self._note(alias.name)

    def visit_Constant(self, node: ast.Constant) -> None:
        """A name, or the path of a module, in quotes."""
        if isinstance(node.value, str):
            for word in node.value.split():
                if PRIVATE_PATH.fullmatch(word) and word == node.value:
                    self._note(word)


@cache
def parse_all() -> list[tuple[Path, ast.Module]]:
    """Every file that runs beside torch, but the table."""
    files = [path for package in PACKAGES for path in sorted((SOURCE / package).rglob("*.py"))]
    return [(path, ast.parse(path.read_text(encoding="utf-8"))) for path in files if path != TABLE]


def own_names() -> set[str]:
    """Private names that the source defines: functions, classes, attributes of `self`, slots."""
    names: set[str] = set()
    for _path, tree in parse_all():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names |= {node.attr} if ast.unparse(node.value) in {"self", "cls"} else set()
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__slots__":
                names |= set(ast.literal_eval(node.value))
    return names


@cache
def used_names() -> dict[str, set[str]]:
    """Private names of torch -> the files that use them.

    A name that the source defines too is torch's where the table has it.
    """
    listed = {part for internal in INTERNALS for part in internal.path.split(".")}
    others = set().union(*NOT_OF_TORCH.values()) | (own_names() - listed)
    names: dict[str, set[str]] = {}
    for path, tree in parse_all():
        for name in Names(tree).names - others:
            names.setdefault(name, set()).add(path.relative_to(SOURCE).as_posix())
    return names


def test_every_private_name_of_torch_is_listed() -> None:
    listed = {part for internal in INTERNALS for part in internal.path.split(".")}
    assert {name: files for name, files in used_names().items() if name not in listed} == {}


def words_of(node: ast.AST) -> set[str]:
    """The names that a node of a tree has: attributes, imports, and words in quotes."""
    if isinstance(node, ast.Attribute):
        return {node.attr}
    if isinstance(node, ast.alias):
        return set(node.name.split("."))
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return set(re.findall(r"\w+", node.value))
    return set()


def test_every_listed_name_is_used() -> None:
    words = set().union(*(words_of(node) for _, tree in parse_all() for node in ast.walk(tree)))
    assert [each.path for each in INTERNALS if each.path.rpartition(".")[2] not in words] == []


def test_no_name_is_listed_twice() -> None:
    paths = [internal.path for internal in INTERNALS]
    assert len(set(paths)) == len(paths)


def test_a_name_with_versions_is_one_that_ullage_can_do_without() -> None:
    assert all(each.is_optional for each in INTERNALS if each.since or each.until)


def test_paths_that_the_source_looks_up_are_listed() -> None:
    paths = {internal.path for internal in INTERNALS}
    for path, tree in parse_all():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
                ("internals.find", "internals.explain_missing")
            ):
                literal = node.args[1]
                if isinstance(literal, ast.Constant):
                    assert literal.value in paths, f"{path}: {ast.unparse(node)}"


@pytest.fixture
def torch() -> ModuleType:
    """A torch that has one name."""
    backend = SimpleNamespace(_cuda_clearCublasWorkspaces=len)
    return cast(Any, SimpleNamespace(__version__="2.6.0", _C=backend))


def test_a_name_is_looked_up(torch: ModuleType) -> None:
    assert find(torch, "torch._C._cuda_clearCublasWorkspaces") is len


def test_a_missing_name_is_none_and_explained(torch: ModuleType) -> None:
    path = "torch._C._dynamo.eval_frame.skip_code"
    assert find(torch, path) is None
    assert explain_missing(torch, path) == (
        "torch 2.6.0 has no torch._C._dynamo.eval_frame.skip_code: the compiler traces what ullage "
        "puts around a call"
    )


def test_what_watching_loses_is_said_in_one_sentence_each(torch: ModuleType) -> None:
    assert list_losses(torch)[-1] == (
        "torch 2.6.0 has no torch.autograd._engine_run_backward: the begin and end of backward are "
        "not known"
    )


def test_a_path_that_is_not_listed_is_refused(torch: ModuleType) -> None:
    with pytest.raises(KeyError):
        find(torch, "torch._C._no_such_name")
