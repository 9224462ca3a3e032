"""The memory of a GPU beside the program's tensors, as it was measured on this machine.

    stored = stored_memory("h100-80gb")     # None: not measured here
    stored.context_bytes

`ullage diff` writes it from a record of `ullage record`, `ullage gpus` shows it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from ullage.ground.errors import SpecError
from ullage.ground.protocol.plain import STRICT_JSON, Misfit, at_least, document_of

_HOW = "make it anew: ullage diff PREDICTED MEASURED"


@dataclass(frozen=True, slots=True)
class MeasuredMemory:
    """The measured memory of a GPU in one record.

    Attributes:
        gpu: its name in the catalogue.
        device: CUDA's name for it.
        driver, torch: the versions at the time; the driver's is None where NVML did not tell.
        date: of the record, such as "2026-11-24".
        context_bytes: in use of the device beside PyTorch's memory when CUDA had started, with no
            other process on it.
        workspace_bytes: the largest block that each library was handed as scratch; in one program:
            another one may need more.
    """

    SCHEMA: ClassVar[str] = "ullage.memory/1"

    gpu: str
    device: str
    driver: str | None
    torch: str
    date: str
    context_bytes: Annotated[int, at_least(0)]
    workspace_bytes: Mapping[str, Annotated[int, at_least(0)]] = field(hash=False)

    @property
    def document(self) -> dict[str, Any]:
        """The document that the file contains."""
        return document_of(self)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> MeasuredMemory:
        """Reads a file.

        Raises:
            SpecError: it cannot be read, or is not such a file.
        """
        name = os.fspath(path)
        try:
            return _parse(json.loads(Path(name).read_text(encoding="utf-8")))
        except OSError as error:
            raise SpecError(f"{name!r} cannot be read: {error.strerror or error}") from None
        except Misfit as misfit:
            raise SpecError(f"{misfit.of_file(name)}; {_HOW}, or delete it") from None
        except (ValueError, SpecError) as error:
            raise SpecError(f"{name}: {error}; {_HOW}, or delete it") from None


def memory_path(slug: str) -> Path:
    """The file in which the measured memory of a GPU is kept."""
    configuration = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(configuration, "ullage", "memory", f"{slug}.json")


def stored_memory(slug: str) -> MeasuredMemory | None:
    """The measured memory of a GPU in the catalogue; None: nothing was measured.

    Raises:
        SpecError: the file is damaged.
    """
    path = memory_path(slug)
    return MeasuredMemory.load(path) if path.exists() else None


def _parse(document: object) -> MeasuredMemory:
    if not isinstance(document, dict) or document.pop("schema", None) != MeasuredMemory.SCHEMA:
        raise SpecError(f"it is not a document of the schema {MeasuredMemory.SCHEMA!r}")
    return STRICT_JSON.read(MeasuredMemory, document)
