"""Dummy files for missing weights: `ullage run --dummy-weights`.

If transformers loads a model from a directory, or a name on the Hugging Face hub, without weight
files, it finds safetensors files with the names, shapes and types that the model's config
describes. The files are sparse and take no disk space. transformers itself does everything else
(the order of loading, device_map, conversions, quantisation). Existing weights are loaded as usual.
Nothing is downloaded except the files that a config needs.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import math
import os
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from ullage.players.inside.import_hooks import on_import
from ullage.players.inside.part import Part
from ullage.players.inside.patches import Patches

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_POINTER = b"version https://git-lfs"
_SHARD_BYTES = 4 << 30
"""The maximum size of a file: Linux refuses to map one that is larger than the machine's memory."""
_HUB = ("cache_dir", "revision", "token", "local_files_only", "subfolder", "trust_remote_code")
TYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
"""The names of torch's types in safetensors."""


class MadeUpWeights(Part):
    """Provides dummy weight files. One instance per process."""

    def __init__(self, torch: ModuleType, directory: Path, warn: Callable[[str], None]) -> None:
        """`directory` is for the files; `warn` gets a message about the dummy weights."""
        self._torch = torch
        self._directory = directory
        self._warn = warn
        self.num_made = 0
        self._made: dict[tuple[Path, str], Path] = {}
        self._ranges: list[tuple[int, int]] = []

    def install(self, _patches: Patches) -> None:
        """Patches transformers when it is imported."""
        on_import("transformers.modeling_utils", self._cover)

    def note(self, sentence: str) -> None:
        """A model has got dummy weights, from here or from elsewhere."""
        self.num_made += 1
        self._warn(sentence)

    def remarks(self) -> list[str]:
        """An option that did nothing, as the program does not do what it is about."""
        text = (
            "dummy_weights made nothing up: it is about missing weights that transformers' or "
            "diffusers' from_pretrained or timm's pretrained=True ask for, and there were none"
        )
        return [] if self.num_made else [text]

    def holds(self, address: int) -> bool:
        """True if an address is in a dummy file."""
        if not self._made:
            return False
        if not any(low <= address < high for low, high in self._ranges):
            self._ranges = list(self._mapped())
        return any(low <= address < high for low, high in self._ranges)

    def _mapped(self) -> Iterator[tuple[int, int]]:
        for line in Path("/proc/self/maps").read_text(errors="replace").splitlines():
            if str(self._directory) in line:
                low, _, high = line.partition(" ")[0].partition("-")
                yield int(low, 16), int(high, 16)

    def _cover(self, modeling: ModuleType) -> None:
        base = modeling.PreTrainedModel
        original = base.from_pretrained.__func__

        @functools.wraps(original)
        def from_pretrained(cls: Any, name: Any, *args: Any, **kwargs: Any) -> Any:
            directory = self._directory_for(cls, name, kwargs)
            if directory is None:
                return original(cls, name, *args, **kwargs)
            kwargs = {key: kwargs[key] for key in kwargs.keys() - {"subfolder", "revision"}}
            model = original(cls, str(directory), *args, **kwargs)
            for owner, field in ((model, "name_or_path"), (model.config, "_name_or_path")):
                setattr(owner, field, str(name))
            return model

        base.from_pretrained = classmethod(from_pretrained)

    def _directory_for(self, cls: Any, name: Any, kwargs: Any) -> Path | None:
        """A directory with dummy weights that replaces the program's; None: the program's has
        weights, or has no config from which to make dummies.
        """
        if name is None or kwargs.get("state_dict") is not None or kwargs.get("gguf_file"):
            return None
        hub = {key: kwargs[key] for key in _HUB if key in kwargs}
        source = find_source(str(name), hub)
        argument = kwargs.get("config")
        kind = type(argument) if hasattr(argument, "to_dict") else cls.config_class
        if source is None and not Path(str(name)).exists():
            kind.from_pretrained(name, **hub)  # downloads it to the cache
            source = find_source(str(name), hub)
        if source is None or _has_weights(source):
            return None
        config = kind.from_pretrained(str(source))  # the checkpoint's, without program changes
        if getattr(config, "quantization_config", None) is not None:
            raise ValueError(
                f"the weights of {name} are not there, and its config says that they are "
                "quantised; --dummy-weights makes up plain weights only: take quantization_config "
                "out of the config and give it to from_pretrained, or download the weights"
            )
        key = (source, cls.__name__)
        if key not in self._made:
            self._made[key] = self._make(cls, config, source, str(name))
        return self._made[key]

    def _make(self, cls: Any, config: Any, source: Path, name: str) -> Path:
        tensors = self._tensors(cls, config)
        self._directory.mkdir(parents=True, exist_ok=True)
        directory = Path(tempfile.mkdtemp(dir=self._directory))
        for path in source.iterdir():
            if not path.name.endswith((".safetensors", ".bin", ".index.json")):
                (directory / path.name).symlink_to(path.resolve())
        shards = _shards(tensors, source)
        for file, names in shards.items():
            if (source / file).exists() and not _is_pointer(source / file):
                (directory / file).symlink_to((source / file).resolve())
            else:
                write_hole(directory / file, {key: tensors[key] for key in names})
        if set(shards) != {_WEIGHTS[0]}:
            places = {key: file for file, names in shards.items() for key in names}
            index = {"metadata": {"total_size": total_bytes(tensors)}, "weight_map": places}
            (directory / _INDEXES[0]).write_text(json.dumps(index))
        self.note(
            f"the weights of {name} are not there and were made up from its config: "
            f"{len(tensors)} tensors, {total_bytes(tensors):,} bytes of zeros"
        )
        return directory

    def _tensors(self, cls: Any, config: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
        model = self._model(self._class_of(cls, config), config)
        dtype = _dtype(config) or self._torch.float32
        if isinstance(dtype, str):
            dtype = getattr(self._torch, dtype.removeprefix("torch."))
        model.tie_weights()
        weights, visited = {}, set()
        for name, tensor in model.state_dict(keep_vars=True).items():
            if id(tensor) not in visited:  # only the first of tied tensors
                visited.add(id(tensor))
                weights[name] = tensor.detach()
        return {
            name: (
                TYPES[str(dtype if value.is_floating_point() else value.dtype)[6:]],
                tuple(value.shape),
            )
            for name, value in _as_saved(model, weights).items()
        }

    def _class_of(self, cls: Any, config: Any) -> Any:
        """The class of the checkpoint, which does not have a head that the program adds."""
        kwargs = next(iter(getattr(config, "architectures", None) or ()), "")
        transformers = importlib.import_module("transformers")
        return getattr(transformers, kwargs, None) or cls

    def _model(self, cls: Any, config: Any) -> Any:
        """Builds the model without bytes, or on the CPU if its constructor reads values."""
        torch = self._torch
        state = torch.get_rng_state()
        try:
            try:
                with torch.device("meta"):
                    return cls(config)
            except (RuntimeError, NotImplementedError):
                with torch.device("cpu"):
                    return cls(config)
        finally:
            torch.set_rng_state(state)


def find_source(name: str, hub: Mapping[str, Any]) -> Path | None:
    """The directory with the config of a model; for a name on the hub, the one in the cache."""
    folder = hub.get("subfolder") or ""
    if Path(name).is_dir():
        path = Path(name) / folder
        return path if (path / "config.json").is_file() else None
    with contextlib.suppress(ImportError, ValueError):  # ValueError: an invalid repository name
        hugging_face = importlib.import_module("huggingface_hub")
        cached = hugging_face.try_to_load_from_cache(
            name,
            os.path.join(folder, "config.json"),  # noqa: PTH118 - a name on the hub, not a path
            cache_dir=hub.get("cache_dir"),
            revision=hub.get("revision"),
        )
        if isinstance(cached, str):
            return Path(cached).parent
    return None


def _has_weights(directory: Path) -> bool:
    for name in _INDEXES:
        if (directory / name).is_file():
            files = set(json.loads((directory / name).read_text())["weight_map"].values())
            return all(map(_is_there, (directory / file for file in files)))
    others = (path for path in directory.iterdir() if path.suffix in {".h5", ".msgpack", ".gguf"})
    return any(map(_is_there, [*(directory / name for name in _WEIGHTS), *others]))


def _is_there(path: Path) -> bool:
    return path.is_file() and not _is_pointer(path)


def _is_pointer(path: Path) -> bool:
    """True if a file is the pointer of a file that Git LFS has not fetched."""
    with path.open("rb") as file:
        return file.read(len(_POINTER)) == _POINTER


def _dtype(config: Any) -> Any:
    """The type of the checkpoint's numbers according to a config."""
    for owner in (config, getattr(config, "text_config", None)):
        dtype = getattr(owner, "dtype", None) or getattr(owner, "torch_dtype", None)
        if dtype is not None:
            return dtype
    return None


def _as_saved(model: Any, tensors: dict[str, Any]) -> dict[str, Any]:
    """The tensors with the names and parts of a checkpoint, which may split experts."""
    try:
        loading = importlib.import_module("transformers.core_model_loading")
        saved: dict[str, Any] = loading.revert_weight_conversion(model, dict(tensors))
    except (ImportError, AttributeError):  # before 5
        return tensors
    return saved


def total_bytes(tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> int:
    """The size of tensors in a file, from their types and shapes."""
    return sum(_bytes_of(*tensor) for tensor in tensors.values())


def _bytes_of(kind: str, shape: tuple[int, ...]) -> int:
    bits = 8 if kind in {"BOOL", "F8_E4M3", "F8_E5M2"} else int(kind.lstrip("BFIU"))
    return math.prod(shape) * bits // 8


def _shards(
    tensors: Mapping[str, tuple[str, tuple[int, ...]]], source: Path
) -> dict[str, list[str]]:
    """The tensors of each file: as in the index if there is one."""
    index = source / _INDEXES[0]
    if index.is_file():
        kwargs = json.loads(index.read_text())["weight_map"]
        files: dict[str, list[str]] = {}
        for name in tensors.keys() & kwargs.keys():
            files.setdefault(kwargs[name], []).append(name)
        if files:
            return files
    groups: list[list[str]] = [[]]
    size = 0
    for name, tensor in tensors.items():
        if groups[-1] and size + _bytes_of(*tensor) > _SHARD_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(name)
        size += _bytes_of(*tensor)
    if len(groups) == 1:
        return {_WEIGHTS[0]: groups[0]}
    return {f"model-{i:05}-of-{len(groups):05}.safetensors": g for i, g in enumerate(groups, 1)}


def write_hole(path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
    """Writes a sparse safetensors file: a header, and a hole in place of the numbers."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (kind, shape) in tensors.items():
        start, end = end, end + _bytes_of(kind, shape)
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)
