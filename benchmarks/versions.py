"""Try every supported version of torch, and write docs/results/programs.md.

    python -m benchmarks.versions                           # all VERSIONS, environments in .envs/
    python -m benchmarks.versions --torch 2.6.0             # these alone
    python -m benchmarks.versions --python env/bin/python   # environments that are there already

For each: a thin environment, every test that needs PyTorch's CUDA build, and every example on one
GPU. Ends with exit code 1 where anything failed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from benchmarks.examples import EXAMPLES, VERDICTS, run_example
from benchmarks.provenance import made_by
from benchmarks.results import publish
from ullage.players.phantom.environment import make_environment
from ullage.players.phantom.torch_build import TorchBuild, find_torch
from ullage.verbs.env.options import EnvironmentSpec

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "examples" / "requirements.txt"
NEWEST = "newest"
VERSIONS = ("2.6.0", "2.8.0", "2.9.1", "2.11.0", NEWEST)
GPU = "h100-80gb"
FILE_TIMEOUT_S = 1800
# The tests that hang on what torch does; the others, on how programs are started and ended.
FIGURES = (
    "test_exact.py", "test_document.py", "test_values.py", "test_owners.py", "test_transparent.py",
    "test_out_of_memory.py", "test_allocator_settings.py", "test_real_gpus.py", "test_closure.py",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tests:
    """What the tests of one version came to: why some were skipped, and the names of the failed."""

    num_passed: int
    skipped: Counter[str]
    failed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Version:
    """One version of torch: the build, its tests, and the verdict of each example."""

    build: TorchBuild
    python: str
    tests: Tests
    examples: dict[str, str]

    @property
    def failed(self) -> list[str]:
        """What failed, tests and examples."""
        examples = [f"{name}: {said}" for name, said in self.examples.items() if is_failure(said)]
        return [*self.tests.failed, *examples]

    def row(self) -> str:
        """A line of the table."""
        cudnn = next(
            (pin for name, pin in self.build.pins.items() if "cudnn" in name), "not stated"
        )
        num_ran = sum(not is_failure(said) for said in self.examples.values())
        cells = (
            self.build.version.partition("+")[0], self.build.cuda, cudnn, self.python,
            str(self.tests.num_passed), str(len(self.tests.failed)),
            str(self.tests.skipped.total()), f"{num_ran} of {len(self.examples)}",
        )  # fmt: skip
        return f"| {' | '.join(cells)} |"

    def notes(self) -> str:
        """What failed, and why tests were skipped."""
        lines = [f"- failed: {what}" for what in self.failed]
        lines += [f"- skipped, {count}: {why}" for why, count in sorted(self.tests.skipped.items())]
        title = f"## torch {self.build.version}"
        return "\n".join([title, "", *(lines or ["Nothing failed, nothing was skipped."])])


def is_failure(said: str) -> bool:
    """Whether an example's verdict says that it did not run as it should."""
    return said not in (VERDICTS["fits"], VERDICTS["out_of_memory"])


def run_tests(python: Path, *, is_quick: bool) -> Tests:
    """Run every test that needs PyTorch's CUDA build, file by file; or those of FIGURES alone."""
    found: list[ElementTree.Element] = []
    failed: list[str] = []
    # Here each program is started as a user starts it, none forked (tests/phantom/forking).
    environment = os.environ | {"ULLAGE_TEST_PYTHON": str(python), "ULLAGE_TEST_FRESH": "1"}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        if "pytest.mark.phantom" not in path.read_text(encoding="utf-8"):
            continue
        if is_quick and path.name not in FIGURES:
            continue
        with tempfile.TemporaryDirectory(prefix="ullage-versions-") as directory:
            report = Path(directory) / "report.xml"
            command = [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-m",
                "phantom",
                "--tier",
                "all",
                str(path),
            ]
            try:
                subprocess.run(
                    [*command, f"--junitxml={report}", "-p", "no:cacheprovider"],
                    cwd=ROOT, env=environment, timeout=FILE_TIMEOUT_S, check=False,
                    stdout=sys.stderr,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                failed.append(f"{path.name}: over {FILE_TIMEOUT_S} s")
                continue
            if not report.exists():
                failed.append(f"{path.name}: pytest wrote no report")
                continue
            found += ElementTree.parse(report).getroot().iter("testcase")
    return collect(found, failed)


def collect(cases: list[ElementTree.Element], failed: list[str]) -> Tests:
    """Sort pytest's cases into passed, skipped and failed, beside whole files that failed."""
    num_passed, skipped = 0, Counter[str]()
    for case in cases:
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        reason = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        elif reason is not None:
            skipped[reason.get("message", "")] += 1
        else:
            num_passed += 1
    return Tests(num_passed, skipped, tuple(failed))


def run_examples(python: Path) -> dict[str, str]:
    """The verdict of every example on GPU, with the reason where it failed."""
    verdicts = {}
    for example in EXAMPLES:
        try:
            document = run_example(python, example, GPU).document
        except SystemExit as error:
            verdicts[example] = " ".join(str(error).split())[-300:]
            continue
        verdicts[example] = VERDICTS[document["verdict"]]
        if document["verdict"] == "failed":
            verdicts[example] += f": {document['reason']}"
    return verdicts


def environment_of(version: str) -> Path:
    """The interpreter of a version's thin environment, made where it is not there."""
    directory = ROOT / ".envs" / f"torch-{version}"
    spec = EnvironmentSpec(
        torch=None if version == NEWEST else version, requirements=(REQUIREMENTS,)
    )
    return make_environment(
        directory, spec, force=True, progress=lambda line: print(line, file=sys.stderr)
    ).python


def try_version(python: Path, *, is_quick: bool) -> Version:
    """Everything with one interpreter."""
    code = "import platform; print(platform.python_version())"
    said = subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True)
    return Version(
        build=find_torch(str(python)),
        python=said.stdout.strip(),
        tests=run_tests(python, is_quick=is_quick),
        examples=run_examples(python),
    )


def render(versions: list[Version], *, is_quick: bool) -> str:
    """The page."""
    columns = ("torch", "CUDA", "cuDNN", "Python", "passed", "failed", "skipped", "examples")
    head = f"| {' | '.join(columns)} |\n|---|---|---|---|--:|--:|--:|--:|"
    builds = ", ".join(version.build.version for version in versions)
    names = ", ".join(name.removeprefix("test_").removesuffix(".py") for name in FIGURES)
    which = f"the tests (quick: {names})" if is_quick else "all tests"
    return "\n".join(
        [
            f"""# Versions of PyTorch that were checked

{made_by("benchmarks.versions", torch=builds)}

One installation of ullage tests a thin environment (`ullage env`)
for each version of torch. *passed*, *failed* and *skipped* are {which}
that run programs on the phantom. *examples* are the programs of `examples/` that ran on an {GPU},
including those that run out of memory as expected. *cuDNN* is the version that torch requires.

{head}""",
            *(version.row() for version in versions),
            "",
            *(f"{version.notes()}\n" for version in versions),
        ]
    )


def main() -> None:
    """Try the versions and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--torch", action="append", choices=VERSIONS, help="one of the versions, not all"
    )
    parser.add_argument(
        "--python", type=Path, action="append", help="an interpreter with torch, as it is"
    )
    parser.add_argument(
        "--quick", action="store_true", help="the tests that hang on what torch does, and no others"
    )
    args = parser.parse_args()
    chosen = args.torch or (() if args.python else VERSIONS)
    pythons = [environment_of(version) for version in chosen]
    # Not resolved: a virtual environment's python is a link to the one that it was made with.
    pythons += [path.absolute() for path in args.python or ()]
    versions: list[Version] = []
    for python in pythons:
        versions.append(try_version(python, is_quick=args.quick))
        publish("torch-versions", render(versions, is_quick=args.quick))
    failed = [f"torch {one.build.version}: {what}" for one in versions for what in one.failed]
    if failed:
        raise SystemExit("failed:\n" + "\n".join(failed))


if __name__ == "__main__":
    main()
