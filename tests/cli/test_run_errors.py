"""Every wrong use of `ullage run` is one message and exit code 2, and leaves nothing behind.

Through the real command line, under an interpreter with a made-up torch: an empty library with a
version beside it, enough for `ullage run` to start a program that does not import it.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MAIN = "from ullage.cli import main; main()"
Place = Any
Refuse = Callable[..., str]
Make = Callable[..., Any]


@pytest.fixture
def refuse_train(place: Place) -> Refuse:
    """`ullage run OPTIONS -- train.py`, which would run but for the options."""

    def refuse(*options: str) -> str:
        return place.refuse(
            "run", "--python", str(place.python), *options, "--", "train.py", str(place.marker)
        )

    return refuse


def test_without_a_mistake_the_program_runs(place: Place) -> None:
    done = place.run("run", "--python", str(place.python), "--", "train.py", str(place.marker))
    assert done.returncode == 0, done.stderr
    assert place.marker.exists()
    assert "did not use a GPU" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "no program was given; write it after --"),
        (("--",), "no program was given; write it after --"),
        (("--", "missing.py"), "there is no file 'missing.py' (in "),
        (("--", "./missing"), "there is no file './missing' (in "),
        (("--", "dangling.py"), "'dangling.py' is a link to 'nowhere.py', which does not exist"),
        (("--", "folder"), "'folder' is a directory without __main__.py"),
        (("--", "binary.py"), "'binary.py' is a binary file; give a Python file"),
        (("--", "script.sh"), "'script.sh' is a script for /bin/bash; give a Python file"),
        (("--", "no-such-command-of-mine"), "is neither a file here nor a command beside "),
        (("--", "cat"), "cat' is not a Python program; give a Python file"),
        (("--", "-m"), "-m is not followed by a module"),
        (("--", "--gpu", "t4"), "'--gpu' is not a program"),
    ],
)
def test_what_cannot_be_run_is_refused(place: Place, words: tuple[str, ...], message: str) -> None:
    (place.directory / "dangling.py").symlink_to("nowhere.py")
    (place.directory / "folder").mkdir()
    (place.directory / "binary.py").write_bytes(b"\x7fELF\x02\x01\x01\0\0")
    (place.directory / "script.sh").write_text("#!/bin/bash\nls\n")
    assert message in place.refuse("run", *words)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--sweep", "batch"),
            "--sweep 'batch' gives no values; for example: --sweep batch=1,2",
        ),
        (("--sweep", "batch="), "'batch' has an empty value; for example: batch=1,2,4"),
        (("--sweep", "batch=1,,2"), "'batch' has an empty value"),
        (("--sweep", "batch=1,2,1"), "batch has '1' twice; give each value once"),
        (("--sweep", "batch=1", "--sweep", "batch=2"), "--sweep names 'batch' twice"),
        (("--sweep", "2nd=1,2"), "'2nd' is not a name for a variable; expected letters"),
        (("--sweep", "size=1,2"), "no word of the program has {size}; write it where the values"),
        (
            ("--sweep", f"batch={','.join(map(str, range(5000)))}"),
            "that is 5,000 runs; expected 4,096 or fewer",
        ),
        (("--sweep", "batch=1,2", "--gpu", "t4,abacus"), "unknown GPU 'abacus'"),
        (("--gpu", "t4,t4"), "GPU has 't4' twice; give each value once"),
        (("--sweep", "batch=1,2", "--snapshot", "s.pickle"), "a sweep keeps no snapshots"),
        (("--sweep", "batch=1,2", "-o", "t.perfetto.json"), "would hold a timeline, which this"),
        (("--sweep", "batch=1,2", "-o", "page.html"), "end it in one of .json, .svg, .png, .pdf"),
        (("--time", "--price", "0"), "price=0.0 is not a price"),
        (("--sweep", "batch=1,2", "-o", "taken.svg"), "'taken.svg' exists; give another name"),
        (("--sweep", "batch=1,2", "-o", "a.svg", "-o", "a.svg"), "both name 'a.svg'"),
        (("-o", "p.svg"), "'p.svg' would hold a plot, which this answer does not have"),
        (
            ("--interconnect", "fast"),
            "interconnect 'fast'; expected such as 'nvlink', 'pcie'",
        ),
        (("--time", "--interconnect", "fast"), "expected such as 'nvlink'"),
        (("--clock", "slow"), "'slow' is not one of 'real', 'virtual'"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused(
    place: Place, options: tuple[str, ...], message: str
) -> None:
    (place.directory / "taken.svg").touch()
    words = ("--python", str(place.python), *options, "--", "train.py", "{batch}")
    assert message in place.refuse("run", *words)


def test_a_plot_without_matplotlib_is_refused_before_the_runs(place: Place) -> None:
    main = f"import sys; sys.modules['matplotlib'] = None\n{MAIN}"
    words = ("run", "--sweep", "batch=1,2", "-o", "p.svg", "--", "train.py", "{batch}")
    assert "pip install 'ullage[plot]'" in place.refuse(*words, main=main)


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
def test_a_script_without_permission_is_refused(place: Place) -> None:
    (place.directory / "train.py").chmod(0)
    assert "'train.py' cannot be read" in place.refuse("run", "--", "train.py")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--gpu", "h100-80"), "unknown GPU 'h100-80'; did you mean h100-80gb"),
        (("--gpu", "abacus"), "unknown GPU 'abacus'. `ullage gpus` lists all"),
        (("--gpu", ""), "unknown GPU ''"),
        (
            ("--memory", "80G"),
            "can be read in two ways; write 80GiB (85,899,345,920 bytes) or 80GB (80,000,000,000",
        ),
        (("--memory", "abc"), "'abc' is not a size; write a number and a unit"),
        (("--memory", "-1GiB"), "'-1GiB' is not a size"),
        (("--memory", "24 gigabytes"), "has an unknown unit 'gigabytes'; use B, KiB, MiB, GiB"),
        (("--memory", "0"), "a memory of 0 B is not more than the driver's own context takes"),
        (("--memory", "99999TiB"), "is more than the largest that can be played"),
        (("--capability", "9"), "capability='9' is not a compute capability"),
        (("--capability", "sm_90"), "such as 8.9 or 9.0"),
        (("--steps", "0"), "steps=0 is not a number of steps; expected 1 or more"),
        (("--steps", "-2"), "steps=-2 is not a number of steps"),
        (("--steps", "many"), "'many' is not a valid integer; see `ullage run --help`"),
        (("--no-such-option",), "no such option"),
        (("--python", "/no/such/python"), "there is no interpreter '/no/such/python'"),
        (("--python", "folder"), "there is no interpreter 'folder'"),
        (("--snapshot", "taken"), "'taken' exists; give another name, or --force to overwrite it"),
        (("--snapshot", "folder"), "'folder' is a directory; give the name of a file"),
        (("--snapshot", "no/such/file"), "there is no directory 'no/such' to write 'file' into"),
        (("--output", "taken"), "'taken' exists; give another name, or --force to overwrite it"),
        (("--output", "folder"), "'folder' is a directory; give the name of a file"),
        (("-o", "no/such/file"), "there is no directory 'no/such' to write 'file' into"),
        (("-o", "same", "--snapshot", "./same"), "--output and --snapshot both name 'same'"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_refused_before_the_program_starts(
    place: Place, refuse_train: Refuse, options: tuple[str, ...], message: str
) -> None:
    (place.directory / "taken").write_text("mine")
    (place.directory / "folder").mkdir()
    assert message in refuse_train(*options)
    assert (place.directory / "taken").read_text() == "mine"


def test_a_mistyped_verb_is_answered_with_the_nearest(place: Place) -> None:
    assert "there is no verb 'rum'; did you mean run?" in place.refuse("rum", "--", "train.py")


def test_what_is_no_interpreter_is_refused_with_the_reason(place: Place) -> None:
    message = place.refuse("run", "--python", "false", "--", "train.py")
    assert "does not run as a Python interpreter (it exits with 1)" in message


def test_an_interpreter_without_torch_is_sent_to_ullage_env(place: Place, tmp_path: Path) -> None:
    python = tmp_path / "bare"
    # -S: without the packages of the environment that these tests run in.
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "$@"\n')
    python.chmod(0o755)
    message = place.refuse("run", "--python", str(python), "--", "train.py", str(place.marker))
    assert "no torch is installed for" in message and "`ullage env DIR`" in message


def test_a_cpu_only_torch_is_sent_to_ullage_env(
    place: Place, tmp_path: Path, make_python: Make
) -> None:
    python = make_python(tmp_path / "cpu", "2.13.0+cpu", None)
    message = place.refuse("run", "--python", str(python), "--", "train.py", str(place.marker))
    assert "torch 2.13.0+cpu in " in message and "is a CPU-only build" in message
    assert "needs one built for CUDA on Linux" in message
    assert "`ullage env DIR`, then `ullage run --python DIR/bin/python ...`" in message


def test_a_torch_with_functions_that_nobody_answers_is_refused(
    place: Place, tmp_path: Path, make_python: Make, compile_library: Make
) -> None:
    python = make_python(tmp_path / "future", "9.9.0+cu200", "20.0")
    stub = tmp_path / "libstub.so"
    names = ("cudaThinkAhead", "ncclGuess")
    compile_library(stub, "".join(f"int {name}(void) {{ return 0; }}" for name in names))
    calls = " + ".join(f"{name}()" for name in names)
    source = "".join(f"int {name}(void);" for name in names) + f"int f(void) {{ return {calls}; }}"
    library = tmp_path / "future" / "site" / "torch" / "lib" / "libtorch_cuda.so"
    compile_library(library, source, str(stub))
    message = place.refuse("run", "--python", str(python), "--", "train.py", str(place.marker))
    assert "torch 9.9.0+cu200 calls cudaThinkAhead, ncclGuess, which this ullage does" in message


@pytest.mark.parametrize(("system", "name"), [("Darwin", "macOS"), ("Windows", "Windows")])
def test_elsewhere_than_on_linux_the_ways_out_are_named(
    place: Place, system: str, name: str
) -> None:
    main = f"import platform; platform.system = lambda: {system!r}\n{MAIN}"
    message = place.refuse("run", "--", "train.py", str(place.marker), main=main)
    assert f"this is {name}; use WSL2 on Windows, or a Linux container" in message
    message = place.refuse("env", "thin", main=main)
    assert "WSL2" in message and "container" in message


@pytest.mark.phantom
@pytest.mark.parametrize(
    ("setting", "messages"),
    [  # torch's own words, the newest first
        ("no_such_setting:1", ("Unrecognized key 'no_such_setting'", "option: no_such_setting")),
        ("max_split_size_mb:1", ("max_split_size_mb too small", "max_split_size too small")),
        ("expandable_segments:maybe", ("'maybe'", "Expected a single True/False argument")),
    ],
)
def test_a_wrong_allocator_setting_ends_the_program_with_torchs_own_message(
    place: Place, thin_python: Path, setting: str, messages: tuple[str, ...]
) -> None:
    (place.directory / "uses_gpu.py").write_text("import torch\ntorch.zeros(1, device='cuda')\n")
    done = place.run(
        "run", "--alloc-conf", setting, "--python", str(thin_python), "--", "uses_gpu.py"
    )
    assert done.returncode == 3
    errors = [line for line in done.stderr.splitlines() if "Error: " in line]
    assert any(message in errors[0] for message in messages)
    assert str(Path(__file__).parents[2] / "src") not in done.stderr, "a frame of ours"
    # torch 2.9 reads the setting again at the end of the process, and aborts it.
    assert re.search(r"failed: the program (exited with code 1|was ended by signal 6)", done.stdout)
    assert not list(place.directory.glob("*.pickle"))
