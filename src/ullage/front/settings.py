"""The `[front]` table of the configuration: where the front listens, its engines, its tenants.

    [front]
    listen = "127.0.0.1:8080"

    [front.engine.a]
    url = "http://127.0.0.1:8001"
    models = ["llama-3.1-8b"]
    cache = "40GiB"
    architecture = "llama-3.1-8b"       # or token_bytes = 131072

    [front.tenant.chat]
    key_file = "keys/chat"
    weight = 2

All that can be known to be wrong before anything listens is refused here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from ullage.configuration.project_file import open_configuration
from ullage.configuration.sections import Section
from ullage.doors.address import Address, parse_address, read_token
from ullage.errors import SpecError
from ullage.estimate.serving.kv_cache import state_bytes, token_bytes
from ullage.front.policy.admission import TenantSpec
from ullage.front.policy.engine_ledger import EngineSpec
from ullage.front.policy.request import Footprint
from ullage.models.architecture import read_layers
from ullage.models.find import find_config
from ullage.models.layers import Recurrent
from ullage.units import parse_bytes

Read = TypeVar("Read")
_EXAMPLE: Final = '[front.engine.a] with url = "http://127.0.0.1:8001"'
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_URL: Final = re.compile(r"http://(\[[0-9A-Fa-f:.]+\]|[\w.-]+):([0-9]{1,5})/*")
_PERCENT: Final = re.compile(r"([0-9]{1,2}(?:\.[0-9]+)?)\s*%")
_BOUND: Final = "max_tokens"
_USES: Final = ("free", "text")
_TRIMS: Final = ("never", "oldest-messages")


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """An engine: what the policy knows of it, and how it is reached.

    Attributes:
        spec: for the policy.
        host: and port; nothing else is ever connected to.
        port: of the engine.
        key: it asks for; None: none.
        has_metrics: whether its /metrics are read.
        health: path that answers while it is well.
        tokenizer: file of its tokenizer; None: characters are counted.
        media_tokens: bound of the tokens of an image or a sound; None: such prompts are refused.
        gpu: whose cache budget it shares with others; None: its cache is its own.
    """

    spec: EngineSpec
    host: str
    port: int
    key: bytes | None
    has_metrics: bool
    health: str
    tokenizer: Path | None
    media_tokens: int | None
    gpu: str | None


@dataclass(frozen=True, slots=True)
class TenantSettings:
    """A tenant: its share, its key, and what it may do.

    Attributes:
        spec: for the policy.
        key: that its requests bring; None: of the only tenant, on this machine alone.
        deadline_s: seconds to the first token after which an answer is of no use to it.
        max_tokens: the longest answer that it may ask for; None: any.
        is_trimmed: whether the oldest messages of a conversation that is too long are left out.
    """

    spec: TenantSpec
    key: bytes | None
    deadline_s: float | None
    max_tokens: int | None
    is_trimmed: bool


@dataclass(frozen=True, slots=True)
class FrontSettings:
    """The whole table.

    Attributes:
        path: of the file.
        address: where the front listens.
        admin_key: for /admin and /metrics; None: they answer this machine alone.
        engines: by name.
        tenants: by name.
        gpus: the bytes of cache that engines on one GPU share, by its name.
        versions: of a model: the share of each, by the model that clients name.
        quantile: of a tenant's answers that room is reserved for; None: for `max_tokens`.
        max_tokens: of requests that do not say.
        characters_per_token: at least so many; where no tokenizer is given.
        max_queue: requests that wait.
        spare_requests: of each other tenant, for which one above its share leaves room; None: as
            many as that one usually has at once.
        max_body_bytes: of a request.
        fields: that requests may have beside those that are known: "free" or "text" by name.
        slow_reader_s: seconds after which a client that takes nothing is cut off.
    """

    path: Path
    address: Address
    admin_key: bytes | None
    engines: Mapping[str, EngineSettings]
    tenants: Mapping[str, TenantSettings]
    gpus: Mapping[str, int]
    versions: Mapping[str, Mapping[str, float]]
    quantile: float | None
    max_tokens: int
    characters_per_token: float
    max_queue: int
    spare_requests: int | None
    max_body_bytes: int
    fields: Mapping[str, str]
    slow_reader_s: float


def load_front(start: Path, path: Path | None = None) -> FrontSettings:
    """The settings of a directory, or of the nearest one above that has a configuration.

    Args:
        start: where the search begins.
        path: a file to read instead.

    Raises:
        SpecError: there are none, or something in them is wrong.
    """
    opened = open_configuration(start, path)
    if opened is None or "front" not in opened[1]:
        where = f"{str(start.absolute())!r} or above" if opened is None else str(opened[0].path)
        raise SpecError(f"there is no table [front] in {where}; write one, such as {_EXAMPLE}")
    source, table = opened
    section = Section(source, (), table).inner("front")
    root = source.path.parent
    quantile = _quantile(section)
    settings = FrontSettings(
        path=source.path,
        address=_address(section),
        admin_key=_key(section, "admin_key_file", root),
        engines=_tables(section, "engine", lambda each: _engine(each, root, quantile)),
        tenants=_tables(section, "tenant", lambda each: _tenant(each, root)),
        gpus=_tables(section, "gpu", _gpu),
        versions=_tables(section, "model", _versions, has_names=False),
        quantile=quantile,
        max_tokens=section.number("max_tokens", 1) or 1024,
        characters_per_token=_positive(section, "characters_per_token", 3.0),
        max_queue=section.number("max_queue", 0) or 2048,
        spare_requests=section.number("spare_requests", 0),
        max_body_bytes=_size(section, "max_body", "8MiB"),
        fields=_fields(section),
        slow_reader_s=_positive(section, "slow_reader_s", 30.0),
    )
    section.refuse_rest()
    _check(section, settings)
    return settings


def _check(section: Section, settings: FrontSettings) -> None:
    """What is wrong only together."""
    if not settings.engines:
        raise section.error("engine", f"has none; write one, such as {_EXAMPLE}")
    if not settings.tenants:
        raise section.error("tenant", "has none; write one, such as [front.tenant.chat]")
    for engine in settings.engines.values():
        if engine.gpu is not None and engine.gpu not in settings.gpus:
            raise section.error("gpu", f"has no {engine.gpu!r}; write [front.gpu.{engine.gpu}]")
    served = {model for engine in settings.engines.values() for model in engine.spec.models}
    for name, shares in settings.versions.items():
        unknown = sorted(shares.keys() - served)
        if unknown or name in served:
            problem = f"{unknown[0]!r}, which no engine has" if unknown else "a version's name"
            raise section.error("model", f"{name!r} has {problem}")
    keys = [tenant.key for tenant in settings.tenants.values()]
    is_alone = len(keys) == 1 and settings.address.is_loopback
    if None in keys and not is_alone:
        raise section.error(
            "tenant",
            "has one without a key_file; only a single tenant on a loopback address needs none",
        )
    if len({*keys}) < len(keys):
        raise section.error("tenant", "has two with the same key; give each its own")


def _tables(
    section: Section, kind: str, read: Callable[[Section], Read], *, has_names: bool = True
) -> dict[str, Read]:
    """The tables [front.KIND.NAME], by name."""
    tables = section.inner(kind)
    for name in tables.names:
        if has_names and not _NAME.fullmatch(name):
            raise tables.error(name, "is not a name; expected letters, digits, and any of _ -")
    return {name: read(tables.inner(name)) for name in tables.names}


def _address(section: Section) -> Address:
    text = section.text("listen", "127.0.0.1:8080") or "127.0.0.1:8080"
    try:
        return parse_address(text)
    except SpecError:
        raise section.error("listen", f"is {text!r}; expected [HOST:]PORT") from None


def _engine(section: Section, root: Path, quantile: float | None) -> EngineSettings:
    host, port = _url(section)
    models = section.words("models")
    if not models:
        raise section.error("models", 'is missing; name them: models = ["llama-3.1-8b"]')
    tokenizer = section.text("tokenizer")
    given = section.words("adapters") or ()
    adapters = (given,) if isinstance(given, str) else tuple(given)
    spec = EngineSpec(
        name=section.keys[-1],
        models=((models,) if isinstance(models, str) else tuple(models)) + adapters,
        cache_bytes=_size(section, "cache", None),
        footprint=_footprint(section, root),
        max_requests=section.number("max_requests", 1) or 256,
        prefill_tokens_per_s=_positive(section, "prefill_tokens_per_s", 4000.0),
        token_s=_positive(section, "token_s", 0.03),
        prefill_in_flight=section.number("prefill_in_flight", 1) or 8192,
        is_bounded=quantile is None,
        margin_frac=0.0 if quantile is None else 0.05,
        adapters=frozenset(adapters),
        adapter_slots=section.number("adapter_slots", 1),
        adapter_bytes=_size(section, "adapter_cache", 0),
    )
    settings = EngineSettings(
        spec=spec,
        host=host,
        port=port,
        key=_key(section, "key_file", root),
        has_metrics=section.switch("metrics", default=True),
        health=section.text("health") or "/health",
        tokenizer=None if tokenizer is None else root / tokenizer,
        media_tokens=section.number("media_tokens", 1),
        gpu=section.text("gpu"),
    )
    section.refuse_rest()
    return settings


def _gpu(section: Section) -> int:
    size = _size(section, "cache", None)
    section.refuse_rest()
    return size


def _versions(section: Section) -> dict[str, float]:
    """The weight of each version of a model."""
    names = section.names
    if not names:
        raise section.error("", 'has no versions; name them: "llama-v1" = 90')
    return {name: _positive(section, name, 1.0) for name in names}


def _url(section: Section) -> tuple[str, int]:
    text = section.text("url", "http://127.0.0.1:8001")
    match = _URL.fullmatch(text or "")
    if match is None or int(match[2]) > 65535:
        raise section.error("url", f"is {text!r}; expected http://HOST:PORT and nothing more")
    return match[1].strip("[]"), int(match[2])


def _footprint(section: Section, root: Path) -> Footprint:
    """What tokens take: as given, or as the model's configuration says.

    Of layers that see a window alone all tokens are counted, which is an upper bound.
    """
    given = section.number("token_bytes", 1)
    name, kv = section.text("architecture"), section.text("kv") or "bf16"
    block_tokens = section.number("block_tokens", 1) or 16
    if (given is None) is (name is None):
        raise section.error(
            "token_bytes", 'or architecture is needed, not both: architecture = "llama-3.1-8b"'
        )
    if given is not None or name is None:
        return Footprint(given or 1, block_tokens)
    path = root / name
    layers = read_layers(find_config(str(path) if path.exists() else name).config)
    fixed = sum(state_bytes(layer) for layer in layers if isinstance(layer, Recurrent))
    return Footprint(sum(token_bytes(layer, kv) for layer in layers), block_tokens, fixed)


def _tenant(section: Section, root: Path) -> TenantSettings:
    trim = section.text("trim") or _TRIMS[0]
    if trim not in _TRIMS:
        raise section.error("trim", f"is {trim!r}; expected {' or '.join(_TRIMS)}")
    settings = TenantSettings(
        spec=TenantSpec(
            weight=_positive(section, "weight", 1.0),
            max_queue=section.number("max_queue", 0) or 256,
        ),
        key=_key(section, "key_file", root),
        deadline_s=_positive(section, "deadline_s", 0.0) or None,
        max_tokens=section.number("max_tokens", 1),
        is_trimmed=trim == _TRIMS[1],
    )
    section.refuse_rest()
    return settings


def _fields(section: Section) -> Mapping[str, str]:
    fields = section.mapping("fields")
    for name, use in fields.items():
        if use not in _USES:
            raise section.error("fields", f'has {name} = {use!r}; expected "free" or "text"')
    return fields


def _quantile(section: Section) -> float | None:
    text = section.text("reserve") or "90%"
    if text == _BOUND:
        return None
    match = _PERCENT.fullmatch(text)
    if match is None or not float(match[1]):
        raise section.error("reserve", f'is {text!r}; expected "90%" or "{_BOUND}"')
    return float(match[1]) / 100


def _key(section: Section, name: str, root: Path) -> bytes | None:
    text = section.text(name)
    return None if text is None else read_token(root / text)


def _positive(section: Section, key: str, default: float) -> float:
    value = section.amount(key)
    if value is None:
        return default
    if isinstance(value, str) or value <= 0:
        raise section.error(key, f"is {value!r}; expected a number above 0")
    return float(value)


def _size(section: Section, key: str, default: str | int | None) -> int:
    value = section.size(key)
    if value is None and default is None:
        raise section.error(key, f'is missing; give its size: {key} = "40GiB"')
    try:
        return parse_bytes(value if value is not None else default or 0)
    except SpecError as error:
        raise section.error(key, f": {error}") from None
