"""Builds the phantom's libraries with ullage, and names the machine that the wheel is for.

On Linux the wheel holds the libraries; an editable install gets them in place. Elsewhere the wheel
is pure Python, and what needs them (runs, snapshots, estimates of training) says that they are
missing. ULLAGE_BUILD_TARGET, such as aarch64-linux-gnu.2.17, builds for another machine.
"""

from __future__ import annotations

import importlib.util
import os
import platform
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PhantomBuildHook(BuildHookInterface):
    """Puts the phantom's libraries into the wheel."""

    def dependencies(self) -> list[str]:
        """Asks for a compiler from PyPI where there is none."""
        target = _target()
        if not _has_phantom(target):
            return []
        builder = self._load_builder()
        try:
            builder.find_compiler(target=target)
        except builder.BuildError:
            return ["ziglang>=0.13"]
        return []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Builds the libraries before the files of the wheel are gathered."""
        target = _target()
        if self.target_name != "wheel" or not _has_phantom(target):
            return
        builder = self._load_builder()
        if target is None:
            out = builder.build()
        else:
            out = builder.build(Path(self.root, "build", target), target=target)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform_tag(target)}"
        if version != "editable":
            names = (*builder.LIBRARIES, *builder.read_sonames())
            build_data["force_include"].update(
                {str(out / name): f"ullage/ground/native/lib/{name}" for name in names}
            )

    def _load_builder(self) -> ModuleType:
        """The module ullage.ground.native.build, by path: ullage is not installed yet."""
        path = Path(self.root, "src", "ullage", "ground", "native", "build.py")
        spec = importlib.util.spec_from_file_location("ullage_native_build", path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{str(path)!r} is missing; the source tree is incomplete")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


def _target() -> str | None:
    return os.environ.get("ULLAGE_BUILD_TARGET") or None


def _has_phantom(target: str | None) -> bool:
    return target is not None or platform.system() == "Linux"


def _platform_tag(target: str | None) -> str:
    """The wheel's platform: manylinux where zig pinned the C library's version, else linux."""
    if target is None:
        return f"linux_{platform.machine()}"
    machine = target.partition("-")[0]
    _, has_version, glibc = target.partition("gnu.")
    return f"manylinux_{glibc.replace('.', '_')}_{machine}" if has_version else f"linux_{machine}"
