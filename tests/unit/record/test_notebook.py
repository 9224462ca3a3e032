"""What IPython's own shell holds, and that the remedies of the table let it go; without torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ullage
from ullage.ground.protocol.holder_chains import Root, remedy_for, root_of, traceback_of
from ullage.players.inside.allocator.history import without_ours
from ullage.players.inside.owners import notebook, source_location

PROGRAM = Path(__file__).parents[2] / "programs" / "recording" / "ipython_session.py"


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a session of IPython printed."""
    pytest.importorskip("IPython", reason="is not installed")
    home = tmp_path_factory.mktemp("ipython")
    source = str(Path(ullage.__file__).parents[1])
    variables = os.environ | {"IPYTHONDIR": str(home), "HOME": str(home), "PYTHONPATH": source}
    done = subprocess.run(
        [sys.executable, str(PROGRAM)], env=variables, cwd=home, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return document


def test_each_name_of_the_shell_is_found_and_parameters_and_silent_values_are_not(
    session: dict[str, Any],
) -> None:
    # Four cells came before, for the hook.
    assert session["names"] == {
        "1": ["x in __main__", "Out[7][0]"],
        "2": ["Out[6]"],
        "3": ["Out[7][1]"],
        "4": ["y in train() of cell 8 (sys.last_traceback)"],
    }


def test_the_remedies_free_everything(session: dict[str, Any]) -> None:
    assert session["remedies"][1:] == [
        "del Out[7], and then %xdel _7", "del Out[6], and then %xdel _6", "del x", "0 left",
    ]  # fmt: skip
    assert "1/0" in session["remedies"][0]


def test_an_output_that_was_deleted_from_out_is_still_found(session: dict[str, Any]) -> None:
    assert session["after_del"] == {"2": ["_"]}
    assert session["after_del_remedies"] == ["%xdel _", "0 left"]


def test_cells_are_watched_until_the_hook_is_removed(session: dict[str, Any]) -> None:
    assert session["hook"] == [0, 1, 1, 1, 1]


def test_without_ipython_nothing_of_it_is_asked_or_imported() -> None:
    code = "import sys, ullage.players.inside.owners.chains; print('IPython' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("chain", "root", "remedy"),
    [
        ("x in train()", Root.VARIABLE, "del the name"),
        ("rows[3].data in __main__", Root.VARIABLE, "del rows"),
        ("Out[12]['loss']", Root.OUTPUT, "del Out[12], and then %xdel _12"),
        ("__[...]", Root.OUTPUT, "%xdel __"),
        ("get_ipython().user_ns_hidden['_3']", Root.OUTPUT, "del get_ipython().user_ns_hidden"),
        ("get_ipython().displayhook.__", Root.OUTPUT, "another value"),
        ("builtins._", Root.OUTPUT, "another value"),
        ("x in f() (sys.last_traceback)", Root.LAST_ERROR, "1/0"),
        ("sys.last_value.args[0]", Root.LAST_ERROR, "1/0"),
        ("x in f() (traceback of e in g() (sys.last_traceback))", Root.LAST_ERROR, "1/0"),
        ("x in f() (traceback of errors[0] in a.py)", Root.EXCEPTION, "str(error)"),
        ("x in f() (traceback of sys.exception())", Root.EXCEPTION, "retry after"),
    ],
)
def test_a_chain_says_its_root_and_its_remedy(chain: str, root: Root, remedy: str) -> None:
    assert root_of(chain) is root
    assert remedy_for(chain).startswith(remedy) or remedy in remedy_for(chain)


def test_the_last_traceback_has_one_name() -> None:
    assert traceback_of("sys.last_exc") == traceback_of("sys.last_value") == "sys.last_traceback"
    assert traceback_of("error in main()") == "traceback of error in main()"


def test_a_file_is_no_cell() -> None:
    assert notebook.cell_name("train.py") is None
    assert notebook.cell_name("<string>") is None
    assert not notebook.is_typed("<string>") and notebook.is_typed("<stdin>")


@pytest.mark.parametrize("file", ["/tmp/ipykernel_4711/2879120621.py", "<ipython-input-4-1a2b>"])
def test_a_place_in_a_cell_has_the_number_of_the_cell(
    monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    monkeypatch.setattr(notebook, "cell_name", {file: "cell 4"}.get)
    place = {"filename": file, "line": 1, "name": "<module>"}
    script = {"filename": "/srv/train.py", "line": 7, "name": "main"}
    trace = [
        {"action": "alloc", "frames": [place, script]},
        {"action": "alloc", "frames": [script]},
    ]
    cleared = without_ours({"device_traces": [trace], "segments": []})
    files = [
        [frame["filename"] for frame in entry["frames"]] for entry in cleared["device_traces"][0]
    ]
    assert files == [["cell 4", "/srv/train.py"], ["/srv/train.py"]]
    assert source_location.describe([(file, 1, "<module>")]) == "cell 4:1 in <module>"
