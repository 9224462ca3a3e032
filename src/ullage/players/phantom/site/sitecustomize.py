"""Found by every Python process under `ullage run` and `ullage exec`: starts the watching, has a
plan applied, a cap set, or its end noted, then steps aside.

It runs in the user's interpreter, where ullage may not be installed: the package is loaded by its
path, and nothing is added to the module search path.
"""

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def _load_ullage() -> None:
    """Makes `import ullage` find this installation."""
    package = _HERE.parents[2]
    spec = importlib.util.spec_from_file_location(
        "ullage", package / "__init__.py", submodule_search_locations=[str(package)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"ullage is not at {str(package)!r}")
    module = importlib.util.module_from_spec(spec)
    sys.modules["ullage"] = module
    spec.loader.exec_module(module)


def _run_next() -> None:
    """The sitecustomize that this one hides, if there is one."""
    others = [entry for entry in sys.path if Path(entry or ".").resolve() != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("ULLAGE_PHANTOM") == "1" and os.environ.get("ULLAGE_RECORD", "1") == "1":
    _load_ullage()
    from ullage.players.phantom.bootstrap import end_with_parent

    end_with_parent()
    if "ULLAGE_WARM" in os.environ:
        from ullage.players.phantom.fork import become_a_run

        become_a_run()
    elif "ULLAGE_PREFORK" in os.environ:
        from ullage.players.phantom.prefork import start_preforked

        start_preforked()
    else:
        from ullage.players.phantom.bootstrap import start

        start()
    if "ULLAGE_INPUTS" in os.environ:
        from ullage.players.inside.process.input_files import note_inputs

        note_inputs()
elif "ULLAGE_RECORDING" in os.environ:
    _load_ullage()
    from ullage.players.inside.entrances.program import start as start_recording

    start_recording()
elif {"ULLAGE_CAP", "ULLAGE_GUARD"} & os.environ.keys() or (
    "ULLAGE_PLAN" in os.environ and "ULLAGE_PHANTOM" not in os.environ
):
    _load_ullage()
    if "ULLAGE_GUARD" in os.environ:
        from ullage.act.guard.end_note import start as note_end
        from ullage.players.phantom.bootstrap import end_with_parent

        end_with_parent()
        note_end()
    if "ULLAGE_CAP" in os.environ:
        from ullage.act.techniques.applying.cap import start as set_cap

        set_cap()
    # Of a run on the phantom it is not for the processes that are not watched.
    if "ULLAGE_PLAN_NOTES" in os.environ and (
        "ULLAGE_GUARD" in os.environ or "ULLAGE_PHANTOM" not in os.environ
    ):
        from ullage.act.techniques.applying.script import start as apply_plan

        apply_plan()
_run_next()
