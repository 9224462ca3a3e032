"""Where the compiler keeps what it made: its choices with the run, its kernels with the user."""

from __future__ import annotations

from pathlib import Path

from ullage.phantom.caches import compiler_variables


def test_choices_go_to_the_run_whatever_was_set(tmp_path: Path) -> None:
    own = {"TORCHINDUCTOR_CACHE_DIR": "elsewhere", "XDG_CACHE_HOME": str(tmp_path)}
    variables = compiler_variables(tmp_path / "run", own)
    assert variables["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "run" / "inductor")
    assert variables["TORCHINDUCTOR_AUTOTUNE_REMOTE_CACHE"] == "0"


def test_kernels_are_kept_where_the_user_keeps_them(tmp_path: Path) -> None:
    variables = compiler_variables(tmp_path, {"TRITON_CACHE_DIR": "mine"})
    assert variables["TRITON_CACHE_DIR"] == "mine"


def test_kernels_are_kept_in_the_users_cache(tmp_path: Path) -> None:
    variables = compiler_variables(tmp_path, {"XDG_CACHE_HOME": str(tmp_path)})
    assert variables["TRITON_CACHE_DIR"] == str(tmp_path / "ullage" / "triton")


def test_without_a_place_for_kernels_torch_decides(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    variables = compiler_variables(tmp_path, {"XDG_CACHE_HOME": str(tmp_path / "file")})
    assert "TRITON_CACHE_DIR" not in variables
