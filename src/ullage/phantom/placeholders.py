"""Packages that are there in name only, so that pip takes torch's NVIDIA packages for installed.

Under the phantom nobody loads NVIDIA's libraries, and they are three quarters of what `pip install
torch` brings. A placeholder is the metadata of a package (a .dist-info directory) without its
files: `pip check` is content, and a later `pip install timm` brings none of them in.

    for placeholder in placeholders_for(torch_requirements):
        write_placeholder(site_packages, placeholder)
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# What the extras of NVIDIA's cuda-toolkit package stand for where the name is not nvidia-EXTRA.
# Source: Requires-Dist of cuda-toolkit 13.0.2 and 13.2.2.
_TOOLKIT_PACKAGES = {
    "cccl": "nvidia-cuda-cccl",
    "crt": "nvidia-cuda-crt",
    "cudart": "nvidia-cuda-runtime",
    "culibos": "nvidia-cuda-culibos",
    "cupti": "nvidia-cuda-cupti",
    "nvcc": "nvidia-cuda-nvcc",
    "nvrtc": "nvidia-cuda-nvrtc",
    "opencl": "nvidia-cuda-opencl",
    "profiler": "nvidia-cuda-profiler-api",
    "sanitizer": "nvidia-cuda-sanitizer-api",
}
_REQUIREMENT = re.compile(
    r"^\s*(?P<name>[A-Za-z0-9._-]+)\s*(?:\[(?P<extras>[^]]*)\])?\s*\(?(?P<versions>[^;)]*)\)?\s*"
)
_AT_LEAST = re.compile(r"(?:===|==|~=|>=)\s*(?P<version>[0-9][A-Za-z0-9.!+]*)")


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A package that is there in name only.

    extras: the optional parts that it claims to have, such as cublas of cuda-toolkit.
    """

    name: str
    version: str
    extras: tuple[str, ...] = ()


def is_nvidia_requirement(requirement: str) -> bool:
    """True if the requirement (a Requires-Dist line) names a package of NVIDIA's, or Triton."""
    name = requirement_name(requirement)
    return name.startswith(("nvidia-", "cuda-")) or name == "triton"


def requirement_name(requirement: str) -> str:
    """The package that a Requires-Dist line names, normalised: lower case, dashes."""
    match = _REQUIREMENT.match(requirement)
    return re.sub(r"[-_.]+", "-", match["name"]).lower() if match else ""


def placeholders_for(requirements: Iterable[str]) -> tuple[Placeholder, ...]:
    """The placeholders for those requirements that name NVIDIA's packages or Triton.

    Each has the lowest version that the requirement allows. Where cuda-toolkit is asked for by its
    extras, the packages behind the extras come too, in the toolkit's version: others ask for them
    by name.
    """
    placeholders: dict[str, Placeholder] = {}
    for requirement in filter(is_nvidia_requirement, requirements):
        match = _REQUIREMENT.match(requirement)
        if not match:  # is_nvidia_requirement has matched it
            continue
        name = requirement_name(requirement)
        lowest = _AT_LEAST.search(match["versions"])
        version = lowest["version"] if lowest else "0"
        extras = tuple(part.strip() for part in (match["extras"] or "").split(",") if part.strip())
        placeholders[name] = Placeholder(name, version, extras)
        if name == "cuda-toolkit":
            for extra in extras:
                package = _TOOLKIT_PACKAGES.get(extra, f"nvidia-{extra}")
                placeholders.setdefault(package, Placeholder(package, version))
    return tuple(placeholders.values())


def write_placeholder(site_packages: Path, placeholder: Placeholder) -> Path:
    """Writes the package's metadata into a site-packages directory; returns its .dist-info."""
    stem = f"{placeholder.name.replace('-', '_')}-{placeholder.version}"
    dist_info = site_packages / f"{stem}.dist-info"
    dist_info.mkdir(exist_ok=True)
    metadata = [
        "Metadata-Version: 2.1",
        f"Name: {placeholder.name}",
        f"Version: {placeholder.version}",
        "Summary: Placeholder made by `ullage env`; the package's files are not here",
        *(f"Provides-Extra: {extra}" for extra in placeholder.extras),
    ]
    wheel = "Wheel-Version: 1.0\nGenerator: ullage\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = {"METADATA": "\n".join(metadata) + "\n", "WHEEL": wheel, "INSTALLER": "ullage\n"}
    record = []
    for name, text in files.items():
        (dist_info / name).write_text(text, encoding="utf-8")
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        record.append(f"{dist_info.name}/{name},sha256={digest.decode()},{len(text.encode())}")
    record.append(f"{dist_info.name}/RECORD,,")
    (dist_info / "RECORD").write_text("\n".join(record) + "\n", encoding="utf-8")
    return dist_info
