"""Where the compiler keeps what it made: its choices with the run, its kernels with the user."""

from __future__ import annotations

from pathlib import Path

import pytest

from ullage.players.phantom.caches import compiler_variables, unused_cache, without_spaces

DEVICE = "name=some;total_bytes=1"


def test_choices_go_to_the_run_whatever_was_set(tmp_path: Path) -> None:
    own = {"TORCHINDUCTOR_CACHE_DIR": "elsewhere", "XDG_CACHE_HOME": str(tmp_path)}
    variables = compiler_variables(tmp_path / "run", own, DEVICE)
    assert variables["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "run" / "inductor")
    assert variables["TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE"] == "0"


def test_kernels_are_kept_where_the_user_keeps_them(tmp_path: Path) -> None:
    variables = compiler_variables(tmp_path, {"TRITON_CACHE_DIR": "mine"}, DEVICE)
    assert variables["TRITON_CACHE_DIR"] == "mine"


def test_kernels_are_kept_in_the_users_cache(tmp_path: Path) -> None:
    variables = compiler_variables(tmp_path, {"XDG_CACHE_HOME": str(tmp_path)}, DEVICE)
    assert variables["TRITON_CACHE_DIR"] == str(tmp_path / "ullage" / "triton")


def test_without_a_place_for_kernels_torch_decides(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    variables = compiler_variables(tmp_path, {"XDG_CACHE_HOME": str(tmp_path / "file")}, DEVICE)
    assert "TRITON_CACHE_DIR" not in variables


def test_graphs_outlive_the_run_and_choices_do_not(tmp_path: Path) -> None:
    for run in ("first", "second"):
        own = {"XDG_CACHE_HOME": str(tmp_path)}
        choices = Path(compiler_variables(tmp_path / run, own, DEVICE)["TORCHINDUCTOR_CACHE_DIR"])
        names = {path.name for path in choices.iterdir()}
        assert names == {"fxgraph", "aotautograd"}
        graph = choices / "fxgraph" / "graph"
        assert graph.exists() == (run == "second")
        graph.touch()
        (choices / "some.best_config").touch()


def test_each_device_has_graphs_of_its_own(tmp_path: Path) -> None:
    """Inductor tells devices apart by their names, and here a name can have another capability."""
    own = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    for number, device in enumerate((DEVICE, f"{DEVICE};capability=8.9")):
        compiler_variables(tmp_path / str(number), own, device)
    places = {(tmp_path / str(number) / "inductor" / "fxgraph").resolve() for number in range(2)}
    assert len(places) == 2


def test_the_same_directory_can_be_prepared_twice(tmp_path: Path) -> None:
    own = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    first, second = (compiler_variables(tmp_path / "run", own, DEVICE) for _ in range(2))
    assert first == second


def test_a_linker_finds_preloaded_libraries_after_those_of_the_user(tmp_path: Path) -> None:
    library = tmp_path / "libcudart.so.13"
    library.touch()
    own = {
        "LD_PRELOAD": f"phantom.so:{library}",
        "LIBRARY_PATH": "mine",
        "XDG_CACHE_HOME": str(tmp_path),
    }
    user, _, ours = compiler_variables(tmp_path, own, DEVICE)["LIBRARY_PATH"].partition(":")
    assert user == "mine"
    assert [path.name for path in Path(ours).iterdir()] == ["libcudart.so"]
    assert (Path(ours) / "libcudart.so").resolve() == library


def test_a_cache_that_was_named_and_not_used_is_told(tmp_path: Path) -> None:
    assert unused_cache({}) is None
    told = unused_cache({"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)})
    assert told is not None
    assert str(tmp_path) in told


def test_libraries_in_a_directory_with_a_space_have_a_name_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    libraries = tmp_path / "a clone" / "lib"
    libraries.mkdir(parents=True)
    names = {without_spaces(libraries, tmp_path / "run") for _ in range(2)}
    assert len(names) == 1 and " " not in str(*names)
    assert next(iter(names)).samefile(libraries)
    assert without_spaces(tmp_path, tmp_path / "run") == tmp_path
