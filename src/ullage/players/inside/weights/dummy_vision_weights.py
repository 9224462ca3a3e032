"""Dummy weights for diffusers and timm if files are missing: `ullage run --dummy-weights`.

diffusers: `from_pretrained` of a model, or of a pipeline in a directory, finds sparse safetensors
files with the names and shapes of the model's config. A pipeline with a name on the hub needs a
directory, because diffusers downloads it completely before it loads the models.
timm: `pretrained=True` keeps the initial weights if those on the hub are not in the cache. timm
loads weights into an existing model, so the memory is the same.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from ullage.players.inside.import_hooks import on_import
from ullage.players.inside.part import Part
from ullage.players.inside.patches import Patches
from ullage.players.inside.weights.dummy_weights import TYPES, find_source, total_bytes, write_hole

_CONFIG = "config.json"
_STEM = "diffusion_pytorch_model"
_SUFFIXES = (".safetensors", ".bin", ".safetensors.index.json", ".bin.index.json")
_HUB = ("cache_dir", "revision", "token", "local_files_only", "subfolder")
_TIMM_FILES = ("model.safetensors", "open_clip_model.safetensors", "pytorch_model.bin")


class MadeUpVision(Part):
    """Provides dummy weights for diffusers and timm. One instance per process."""

    def __init__(self, torch: ModuleType, directory: Path, note: Callable[[str], None]) -> None:
        """`directory` is for the files; `note` gets a message about each model's."""
        self._torch = torch
        self._directory = directory
        self._note = note
        self._made: dict[tuple[Path, str, str | None], Path] = {}

    def install(self, _patches: Patches) -> None:
        """Patches each of the libraries when it is imported."""
        on_import("diffusers.models.modeling_utils", self._cover_diffusers)
        on_import("timm.models._builder", self._cover_timm)

    def _cover_diffusers(self, modeling: ModuleType) -> None:
        base = modeling.ModelMixin
        original = base.from_pretrained.__func__

        @functools.wraps(original)
        def from_pretrained(cls: Any, name: Any, *args: Any, **kwargs: Any) -> Any:
            directory = self._directory_for(cls, name, kwargs)
            if directory is None:
                return original(cls, name, *args, **kwargs)
            options = {key: kwargs[key] for key in kwargs.keys() - {*_HUB, "variant"}}
            return original(cls, str(directory), *args, **options)

        base.from_pretrained = classmethod(from_pretrained)

    def _directory_for(self, cls: Any, name: Any, kwargs: Any) -> Path | None:
        """A directory with dummy weights; None: the model has weights, or has no config."""
        hub = {key: kwargs[key] for key in _HUB if kwargs.get(key) is not None}
        source = find_source(str(name), hub)
        if source is None and not Path(str(name)).exists():
            cls.load_config(name, **hub)  # downloads it to the cache
            source = find_source(str(name), hub)
        if source is None or _has_weights(source):
            return None
        key = (source, cls.__name__, kwargs.get("variant"))
        if key not in self._made:
            self._made[key] = self._make(cls, source, name, kwargs.get("variant"))
        return self._made[key]

    def _make(self, cls: Any, source: Path, name: Any, variant: str | None) -> Path:
        config = json.loads((source / _CONFIG).read_text(encoding="utf-8"))
        state = self._torch.get_rng_state()
        with self._torch.device("meta"):
            model = cls.from_config(config)
        self._torch.set_rng_state(state)
        half = self._torch.float16 if variant == "fp16" else None
        tensors = {
            key: (TYPES[str(half if half and value.is_floating_point() else value.dtype)[6:]],
                  tuple(value.shape))
            for key, value in model.state_dict().items()
        }  # fmt: skip
        self._directory.mkdir(parents=True, exist_ok=True)
        path = Path(tempfile.mkdtemp(dir=self._directory))
        (path / _CONFIG).symlink_to((source / _CONFIG).resolve())
        write_hole(path / f"{_STEM}.safetensors", tensors)
        self._note(_sentence(f"{name}/{source.name}", len(tensors), total_bytes(tensors)))
        return path

    def _cover_timm(self, builder: Any) -> None:
        original = builder.load_pretrained

        @functools.wraps(original)
        def load_pretrained(model: Any, *args: Any, **kwargs: Any) -> Any:
            source = args[0] if args else kwargs.get("pretrained_cfg")
            config = source or getattr(model, "pretrained_cfg", None)
            if not config or _is_timm_there(builder, config):
                return original(model, *args, **kwargs)
            sizes = [value.numel() * value.element_size() for value in model.state_dict().values()]
            name = config.get("architecture", "a model of timm")
            self._note(_sentence(name, len(sizes), sum(sizes)))
            return None

        builder.load_pretrained = load_pretrained


def _sentence(name: object, count: int, num_bytes: int) -> str:
    return (
        f"the weights of {name} are not there and were made up: {count} tensors, "
        f"{num_bytes:,} bytes"
    )


def _has_weights(directory: Path) -> bool:
    return any(
        path.is_file() and path.name.startswith(_STEM) and path.name.endswith(_SUFFIXES)
        for path in directory.iterdir()
    )


def _is_timm_there(builder: ModuleType, config: Any) -> bool:
    """True if timm would load without a download."""
    kind, place = builder._resolve_pretrained_source(config)
    if kind == "url":
        name = str(place).rsplit("/", 1)[-1]
        directory = importlib.import_module("torch.hub").get_dir()
        return (Path(directory) / "checkpoints" / name).is_file()
    if kind != "hf-hub":
        return True  # a file, a directory or a state dict; or nothing, then timm reports it
    identifier, *files = place if isinstance(place, tuple) else (place,)
    with contextlib.suppress(ImportError, ValueError):
        hugging_face = importlib.import_module("huggingface_hub")
        names = files or _TIMM_FILES
        return any(
            isinstance(hugging_face.try_to_load_from_cache(identifier, name), str) for name in names
        )
    return False
