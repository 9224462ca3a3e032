"""A clone of the repository in which mutants are tried, so that the working tree is never changed.

The clone has the last commit, its own `.venv` and native libraries, and links to the environments
of the checkout. There pytest runs as `make test` and `make test-all` run it, but for `-x`; of
test-all, the part of the first environment alone.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Final

from benchmarks.net.choice import Mutant
from benchmarks.net.operators import apply_edit

TIERS: Final = ("test", "all")
_NUM_NEAREST: Final = 5
_LIMIT: Final = 3.0  # times what a tier takes without a mutant
_PYTEST: Final = (
    ".venv/bin/python", "-m", "pytest", "-q", "--numprocesses", "auto", "--dist", "loadfile",
    "--no-loadscope-reorder",
)  # fmt: skip
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)
_SET_CHILD_SUBREAPER: Final = 36
_NO_TESTS: Final = 5  # pytest's exit code where no test of these files is of the tier


@dataclass(frozen=True, slots=True)
class Outcome:
    """A call of pytest: the first test that failed, or what was said instead; "": all passed."""

    case: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Clone:
    """The clone, in `root`; `tree` tells its src and tests apart from those of other commits."""

    root: Path
    tree: str

    @property
    def log(self) -> Path:
        """What the last call of pytest said."""
        return self.root.with_name("pytest.log")

    def restore(self) -> None:
        """Takes every change back."""
        _git(self.root, "checkout", "--quiet", "--force", "HEAD", "--", ".")
        _git(self.root, "clean", "--quiet", "--force", "-d", "src")

    def has_mend(self, commit: str) -> bool:
        """Whether the part in src of a commit can be taken back."""
        return self._take_back(commit, "--check").returncode == 0

    def apply(self, mutant: Mutant) -> None:
        """Puts a mutant, and nothing else, into src."""
        self.restore()
        path = self.root / mutant.file
        if mutant.is_mend:
            is_applied = self._take_back(mutant.commit).returncode == 0
        else:
            text = path.read_text(encoding="utf-8") if path.is_file() else ""
            changed = apply_edit(text, mutant.line, mutant.before, mutant.after)
            is_applied = changed is not None
            if changed is not None:
                path.write_text(changed, encoding="utf-8")
        if not is_applied:
            raise SystemExit(
                f"{mutant.name}: {mutant.file or 'src'} has changed since the mutant was drawn; "
                "remove its row from docs/results/net.csv, and another is drawn"
            )
        self.build()

    def build(self, tier: str = "test") -> None:
        """Makes what a tier needs and is not there yet, and the libraries where C has changed."""
        targets = (".venv/done", "phantom", *([".venv/extras"] if tier == "all" else []))
        make = ["make", "--quiet", *targets]
        subprocess.run(make, cwd=self.root, check=True, stdout=subprocess.DEVNULL)

    def changed_files(self, mutant: Mutant) -> list[str]:
        """The files that a mutant changes; of a mend, the tests that came with it, too."""
        if not mutant.is_mend:
            return [mutant.file]
        names = ("diff-tree", "--no-commit-id", "--name-only", "-r", mutant.commit)
        return _git(self.root, *names, "--", "src", "tests").split()

    def tests(self) -> dict[str, str]:
        """The text of each file of tests, by its path from the root."""
        paths = sorted((self.root / "tests").rglob("test_*.py"))
        return {
            path.relative_to(self.root).as_posix(): path.read_text(encoding="utf-8")
            for path in paths
        }

    def run(self, tier: str, *more: str, limit_s: float | None = None) -> Outcome:
        """Runs tests of a tier; `more` are files, cases or options of pytest. What pytest says is
        left in the log.
        """
        begin = time.monotonic()
        variables = {
            "ULLAGE_TEST_PYTHON": ".envs/torch-newest/bin/python",
            "PATH": f"{os.environ['PATH']}:{self.root}/.tools/usr/bin",
            "PYTHONDONTWRITEBYTECODE": "",
        }
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        with self.log.open("w") as file, subprocess.Popen(
            [*_PYTEST, "--tier", tier, *more], cwd=self.root, env={**os.environ, **variables},
            stdout=file, stderr=subprocess.STDOUT,
        ) as process:  # fmt: skip
            try:
                process.wait(limit_s)
            except subprocess.TimeoutExpired:
                process.kill()
        _end_orphans()
        seconds = time.monotonic() - begin
        has_files = any(word.startswith("tests/") for word in more)
        if process.returncode == 0 or (process.returncode == _NO_TESTS and has_files):
            return Outcome("", seconds)
        if process.returncode == -signal.SIGKILL:
            return Outcome(f"took more than {limit_s:.0f} s", seconds)
        said = self.log.read_text(encoding="utf-8", errors="replace")
        failed = _FAILED.search(said)
        return Outcome(failed[1] if failed else said.strip().rpartition("\n")[2], seconds)

    def _take_back(self, commit: str, *options: str) -> subprocess.CompletedProcess[str]:
        patch = _git(self.root, "diff-tree", "-p", "--binary", commit, "--", "src")
        return subprocess.run(
            ["git", "apply", "--reverse", *options, "-"],
            cwd=self.root, input=patch, text=True, capture_output=True, check=False,
        )  # fmt: skip


def make_clone(checkout: Path, scratch: Path) -> Clone:
    """The clone, brought to the checkout's last commit."""
    root = scratch / "clone"
    if not root.exists():
        _git(checkout, "clone", "--quiet", "--shared", "--no-checkout", ".", str(root))
    _git(root, "fetch", "--quiet", "origin", "HEAD")
    _git(root, "checkout", "--quiet", "--force", "--detach", "FETCH_HEAD")
    # A link is not what .gitignore ignores, a folder.
    (root / ".git" / "info" / "exclude").write_text(".envs\n.tools\n", encoding="utf-8")
    for name in (".envs", ".tools"):
        if not (root / name).is_symlink():
            (root / name).symlink_to(checkout / name)
    tree = "-".join(_git(root, "rev-parse", f"HEAD:{part}")[:6] for part in ("src", "tests"))
    clone = Clone(root, tree)
    clone.restore()
    clone.build()
    return clone


def nearest_tests(changed: Sequence[str], tests: Mapping[str, str]) -> list[str]:
    """The files of tests that say most of some files, the likeliest to fail first."""
    scores = {
        test: sum(_closeness(file, test, text) for file in changed) for test, text in tests.items()
    }
    close = [test for test, score in scores.items() if score]
    return sorted(close, key=lambda test: -scores[test])[:_NUM_NEAREST]


def _closeness(file: str, test: str, text: str) -> int:
    """How much a file of tests has to do with a file."""
    path = PurePosixPath(file)
    if file == test:  # it came with a mend
        return 8
    if path.suffix != ".py" or not file.startswith("src/"):
        return int(path.suffix in (".c", ".h", ".inc") and path.stem in text)
    module = ".".join(path.with_suffix("").parts[1:]).removesuffix(".__init__")
    package = module.split(".")[1]
    return (
        4 * bool(re.search(rf"\b{re.escape(module)}\b", text))
        + 3 * (PurePosixPath(test).stem == f"test_{path.stem}")
        + 1 * test.startswith((f"tests/unit/{package}/", f"tests/unit/test_{package}"))
        + 1 * (path.stem in text)
    )


def try_mutant(clone: Clone, mutant: Mutant, last: str = TIERS[-1]) -> Mutant:
    """The mutant with the first tier that catches it, and the first test that failed there.

    Args:
        clone: where it is tried.
        mutant: not tried yet, or one that passed `make test` and is tried by the next tier.
        last: the tier after which no other is tried.
    """
    nearest = nearest_tests(clone.changed_files(mutant), clone.tests())
    caught = "none" if last == TIERS[-1] else "later"
    tiers = TIERS[mutant.tier == "later" : TIERS.index(last) + 1]
    outcome, seconds = Outcome("", 0.0), float(mutant.seconds if mutant.tier == "later" else 0)
    for tier in tiers:
        limit_s = _LIMIT * usual_s(clone, tier)
        clone.apply(mutant)
        outcome = try_tier(clone, tier, nearest, limit_s)
        seconds += outcome.seconds
        if outcome.case:
            caught = tier
            break
    clone.restore()
    return replace(mutant, tier=caught, case=outcome.case, seconds=round(seconds), tree=clone.tree)


def try_tier(clone: Clone, tier: str, nearest: Sequence[str], limit_s: float) -> Outcome:
    """The first test of a tier that fails, those of the nearest files first.

    A test that then passes alone may have failed by chance: the call is made once more, and counts.
    """
    seconds = 0.0
    for files in [nearest, []] if nearest else [[]]:
        outcome = clone.run(tier, "-x", *files, limit_s=limit_s)
        if "::" in outcome.case and not clone.run(tier, outcome.case, limit_s=limit_s).case:
            outcome = clone.run(tier, "-x", *files, limit_s=limit_s)
        seconds += outcome.seconds
        if outcome.case:
            return Outcome(outcome.case, seconds)
    return Outcome("", seconds)


def usual_s(clone: Clone, tier: str) -> float:
    """How long a tier takes without a mutant; found once for a tree.

    Raises:
        SystemExit: it does not pass, and every mutant would count as caught.
    """
    path = clone.root.with_name(f"usual-{clone.tree}-{tier}.txt")
    if not path.exists():
        clone.restore()
        clone.build(tier)
        outcome = clone.run(tier, "-x")
        if outcome.case:
            raise SystemExit(
                f"without a mutant, tier {tier!r} failed: {outcome.case}; expected it to pass, "
                f"since every mutant would count as caught; see {clone.log}, mend it, and commit"
            )
        path.write_text(f"{outcome.seconds:.0f}\n", encoding="utf-8")
    return float(path.read_text(encoding="utf-8"))


def _end_orphans() -> None:
    """Ends what a call of pytest left running: a mutant may loop for ever in a program that a test
    started. Whatever loses its parent becomes this process's child.
    """
    children = Path(f"/proc/self/task/{threading.get_native_id()}/children")
    while pids := children.read_text().split():
        for pid in map(int, pids):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _git(directory: Path, *words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=directory, check=True, capture_output=True, text=True
    ).stdout
