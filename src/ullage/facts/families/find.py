"""Finds a model by what the user gives: a file, a folder, a built-in name or a repository.

find_config("llama-3.1-8b"), find_config("runs/7/config.json"), find_config("org/name")
find_config("7B")       # a number of parameters, and nothing more
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from ullage.facts.families.builtin import find_model, load_models
from ullage.facts.families.config import COUNTED, FILE_NAME, Config, read_config
from ullage.ground.errors import SpecError

_REPOSITORY: Final = re.compile(r"[\w.-]+/[\w.-]+")
_COUNT: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([KMBTkmbt])")
_UNITS: Final = {"K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_PATIENCE_S: Final = 10
_LARGEST_BYTES: Final = 16 * 2**20


class Found(NamedTuple):
    """A configuration and its source; "" for a file of the user's."""

    config: Config
    source: str


def find_config(model: str) -> Found:
    """The configuration of a model.

    Searches files and folders, the built-in models, the local cache of the Hugging Face hub and,
    for a name such as "org/name", the hub itself (respects HF_ENDPOINT, HF_TOKEN and
    HF_HUB_OFFLINE).

    Raises:
        SpecError: there is no such model, or its configuration cannot be read.
    """
    if Path(model).exists():
        return Found(read_config(model), "")
    count = _COUNT.fullmatch(model)
    if count is not None:
        number = int(float(count[1]) * _UNITS[count[2].upper()])
        return Found(Config(model, {"model_type": COUNTED, "num_parameters": number}), "")
    is_repository = _REPOSITORY.fullmatch(model) is not None
    if is_repository and model.lower() not in {
        built_in.source.lower() for built_in in load_models().values()
    }:
        return _from_hub(model)
    match = find_model(model)
    return Found(match.config, match.source)


def find_here(model: str) -> Found | None:
    """The configuration of a model as far as this machine has one, without the network: a file, a
    built-in model by its name, its source or the end of its path, or one in the hub's cache.
    """
    if Path(model).exists():
        try:
            return Found(read_config(model), "")
        except SpecError:
            return None
    end = model.rstrip("/").rpartition("/")[2].lower()
    names = {end, end.removesuffix("-instruct"), model.lower()}
    for name, built_in in load_models().items():
        if names & {name.lower(), built_in.source.lower()}:
            return Found(built_in.config, built_in.source)
    cached = _cached(model) if _REPOSITORY.fullmatch(model) else None
    return None if cached is None else Found(Config(model, read_config(cached).fields), model)


def _from_hub(repository: str) -> Found:
    cached = _cached(repository)
    if cached is not None:
        return Found(Config(repository, read_config(cached).fields), repository)
    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        raise SpecError(f"model: {repository!r} is not in the local cache; HF_HUB_OFFLINE is set")
    # With email, http and ssl a tenth of the time of an estimate, and for names of the hub alone.
    import urllib.error
    import urllib.request

    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    request = urllib.request.Request(f"{endpoint}/{repository}/resolve/main/{FILE_NAME}")
    token = os.environ.get("HF_TOKEN")
    if token:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=_PATIENCE_S) as answer:
            text = answer.read(_LARGEST_BYTES)
    except urllib.error.HTTPError as error:
        raise SpecError(_refused(repository, error.code)) from None
    except (OSError, ValueError) as error:
        raise SpecError(
            f"model: {repository!r} is not built in, and {endpoint} cannot be reached "
            f"({error}); give its config.json as a file"
        ) from None
    return Found(Config(repository, _parse(repository, text)), repository)


def _refused(repository: str, code: int) -> str:
    if code in (401, 403):
        return f"model: {repository!r} needs a login: set HF_TOKEN, or give its {FILE_NAME}"
    return (
        f"model: {repository!r}: the hub answered {code}; check the name, or give its {FILE_NAME}"
    )


def _parse(repository: str, text: bytes) -> Mapping[str, object]:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, Mapping):
        raise SpecError(f"model: {repository!r}: its {FILE_NAME} is not a JSON object")
    return fields


def _cached(repository: str) -> Path | None:
    # The newest config.json of a repository in the hub's local cache.
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    cache = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    folder = cache / f"models--{repository.replace('/', '--')}" / "snapshots"
    files = sorted(folder.glob(f"*/{FILE_NAME}"), key=lambda path: path.stat().st_mtime)
    return files[-1] if files else None
