"""Placeholders: which packages become one, at which version, and what pip makes of them."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from ullage.players.phantom.environment import (
    Placeholder,
    is_nvidia_requirement,
    placeholders_for,
    requirement_name,
    write_placeholder,
)


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        (
            "nvidia-cudnn-cu13==9.26.0.51; platform_system == 'Linux'",
            ("nvidia-cudnn-cu13", "9.26.0.51"),
        ),
        (
            "nvidia-nccl-cu12 (==2.21.5) ; platform_system == 'Linux'",
            ("nvidia-nccl-cu12", "2.21.5"),
        ),
        ("cuda-bindings<14,>=13.0.3; python_version < '3.15'", ("cuda-bindings", "13.0.3")),
        ("triton~=3.9.0", ("triton", "3.9.0")),
        ("NVIDIA_Thing", ("nvidia-thing", "0")),
    ],
)
def test_a_placeholder_has_the_lowest_version_asked_for(
    requirement: str, expected: tuple[str, str]
) -> None:
    (placeholder,) = placeholders_for([requirement])
    assert (placeholder.name, placeholder.version) == expected


def test_what_a_toolkit_extra_stands_for_gets_a_placeholder_too() -> None:
    made = placeholders_for(["cuda-toolkit[cublas, nvrtc]==13.2.2; platform_system == 'Linux'"])
    assert made == (
        Placeholder("cuda-toolkit", "13.2.2", ("cublas", "nvrtc")),
        Placeholder("nvidia-cublas", "13.2.2"),
        Placeholder("nvidia-cuda-nvrtc", "13.2.2"),
    )


def test_a_package_named_outright_keeps_its_own_version() -> None:
    for order in (1, -1):
        lines = ["cuda-toolkit[cublas]==13.2.2", "nvidia-cublas==13.4.0.1"][::order]
        versions = {made.name: made.version for made in placeholders_for(lines)}
        assert versions == {"cuda-toolkit": "13.2.2", "nvidia-cublas": "13.4.0.1"}


@pytest.mark.parametrize("line", ["filelock", "sympy (==1.13.1)", "tritonclient", "cudaless>=1"])
def test_what_is_not_nvidias_is_installed_for_real(line: str) -> None:
    assert not is_nvidia_requirement(line)
    assert placeholders_for([line]) == ()


def test_names_are_normalised() -> None:
    assert requirement_name("Typing_Extensions>=4.13.0") == "typing-extensions"


def test_the_metadata_reads_back(tmp_path: Path) -> None:
    write_placeholder(tmp_path, Placeholder("cuda-toolkit", "13.2.2", ("cublas", "cudart")))
    (found,) = metadata.distributions(path=[str(tmp_path)])
    assert (found.name, found.version) == ("cuda-toolkit", "13.2.2")
    assert found.metadata.get_all("Provides-Extra") == ["cublas", "cudart"]
    files = found.files or []
    assert {path.name for path in files} == {"METADATA", "WHEEL", "INSTALLER", "RECORD"}
    for path in files:
        # RECORD is what `pip uninstall` goes by.
        assert (tmp_path / path).exists()
        assert path.size is None or path.size == (tmp_path / path).stat().st_size
