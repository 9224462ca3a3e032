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
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Final, Literal

from ullage.ground.address import Address, parse_address, read_token
from ullage.ground.config.project_file import open_configuration
from ullage.ground.config.tables import Count, Name, Positive, Size, Whole, parser
from ullage.ground.errors import SpecError
from ullage.ground.protocol.plain import As, Example, From, Mark, Misfit
from ullage.ground.units import MIB
from ullage.operate.front.policy.admission import TenantSpec
from ullage.operate.front.policy.engine_ledger import EngineSpec

_EXAMPLE: Final = '[front.engine.a] with url = "http://127.0.0.1:8001"'
_URL: Final = re.compile(r"http://(\[[0-9A-Fa-f:.]+\]|[\w.-]+):([0-9]{1,5})/*")
_PERCENT: Final = re.compile(r"([0-9]{1,2}(?:\.[0-9]+)?)\s*%")
_LISTEN: Final = Address("127.0.0.1", 8080)
_BOUND: Final = "max_tokens"


def _read_url(text: str) -> Address:
    match = _URL.fullmatch(text)
    if match is None or int(match[2]) > 65535:
        raise Misfit(f"is {text!r}; expected http://HOST:PORT and nothing more")
    return Address(match[1].strip("[]"), int(match[2]))


def _read_listen(text: str) -> Address:
    try:
        return parse_address(text)
    except SpecError:
        raise Misfit(f"is {text!r}; expected [HOST:]PORT") from None


def _read_reserve(text: str) -> float | None:
    match = _PERCENT.fullmatch(text)
    if text != _BOUND and (match is None or not float(match[1])):
        raise Misfit(f'is {text!r}; expected "90%" or "{_BOUND}"')
    return None if match is None else float(match[1]) / 100


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """An engine: what the policy knows of it, and how it is reached.

    Attributes:
        spec: for the policy.
        address: nothing else is ever connected to.
        key: it asks for; None: none.
        has_metrics: whether its /metrics are read.
        health: path that answers while it is well.
        tokenizer: file of its tokenizer; None: characters are counted.
        media_tokens: bound of the tokens of an image or a sound; None: such prompts are refused.
        gpu: whose cache budget it shares with others; None: its cache is its own.
    """

    spec: Annotated[EngineSpec, Mark.FLAT]
    address: Annotated[Address, From(str), _read_url, As("url"), Example('"http://127.0.0.1:8001"')]
    key: Annotated[bytes | None, From(Path), parser(read_token), As("key_file")] = None
    has_metrics: Annotated[bool, As("metrics")] = True
    health: str = "/health"
    tokenizer: Path | None = None
    media_tokens: Count | None = None
    gpu: str | None = None


@dataclass(frozen=True, slots=True)
class TenantSettings:
    """A tenant: its share, its key, and what it may do.

    Attributes:
        spec: for the policy.
        key: that its requests bring; None: of the only tenant, on this machine alone.
        deadline_s: seconds to the first token after which an answer is of no use to it.
        max_tokens: the longest answer that it may ask for; None: any.
        trim: whether the oldest messages of a conversation that is too long are left out.
    """

    spec: Annotated[TenantSpec, Mark.FLAT]
    key: Annotated[bytes | None, From(Path), parser(read_token), As("key_file")] = None
    deadline_s: Positive | None = None
    max_tokens: Count | None = None
    trim: Literal["never", "oldest-messages"] = "never"


@dataclass(frozen=True, slots=True)
class _Gpu:
    """A GPU whose cache several engines share."""

    cache: Annotated[Size, Example('"40GiB"')]


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
        characters_per_token: at least this many; where no tokenizer is given.
        max_queue: requests that wait.
        spare_requests: of each other tenant, for which one above its share leaves room; None: as
            many as that one usually has at once.
        max_body_bytes: of a request.
        fields: that requests may have beside those that are known: "free" or "text" by name.
        slow_reader_s: seconds after which a client that takes nothing is cut off.
    """

    path: Annotated[Path, Mark.NO_KEY]
    address: Annotated[Address, From(str), _read_listen, As("listen")] = _LISTEN
    admin_key: Annotated[bytes | None, From(Path), parser(read_token), As("admin_key_file")] = None
    engines: Annotated[Mapping[Name, EngineSettings], As("engine")] = field(default_factory=dict)
    tenants: Annotated[Mapping[Name, TenantSettings], As("tenant")] = field(default_factory=dict)
    gpus: Annotated[Mapping[Name, Annotated[int, From(_Gpu), attrgetter("cache")]], As("gpu")] = (
        field(default_factory=dict)
    )
    versions: Annotated[Mapping[str, Mapping[str, Positive]], As("model")] = field(
        default_factory=dict
    )
    quantile: Annotated[float | None, From(str), _read_reserve, As("reserve")] = 0.9
    max_tokens: Count = 1024
    characters_per_token: Positive = 3.0
    max_queue: Whole = 2048
    spare_requests: Whole | None = None
    max_body_bytes: Annotated[Size, As("max_body")] = 8 * MIB
    fields: Mapping[str, Literal["free", "text"]] = field(default_factory=dict)
    slow_reader_s: Positive = 30.0


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
    settings = source.read(FrontSettings, ("front",), table["front"], path=source.path)
    with source.at("front"):
        _check(settings)
    engines = {name: _in_force(each, settings) for name, each in settings.engines.items()}
    return replace(settings, engines=engines)


def _in_force(engine: EngineSettings, settings: FrontSettings) -> EngineSettings:
    """The engine with its adapters among its models, and with what is reserved there."""
    spec = replace(engine.spec, models=engine.spec.models + engine.spec.adapters)
    if settings.quantile is None:
        spec = replace(spec, is_bounded=True, margin_frac=0.0)
    return replace(engine, spec=spec)


def _check(settings: FrontSettings) -> None:
    if not settings.engines:
        raise Misfit(f"has none; write one, such as {_EXAMPLE}", "engine")
    if not settings.tenants:
        raise Misfit("has none; write one, such as [front.tenant.chat]", "tenant")
    for name, engine in settings.engines.items():
        if engine.gpu is not None and engine.gpu not in settings.gpus:
            problem = f"is {engine.gpu!r}, which is not there; write [front.gpu.{engine.gpu}]"
            raise Misfit(problem, "engine", name, "gpu")
    served = {
        model
        for engine in settings.engines.values()
        for model in engine.spec.models + engine.spec.adapters
    }
    for name, shares in settings.versions.items():
        if not shares:
            raise Misfit('has no versions; name them: "llama-v1" = 90', "model", name)
        for version in sorted(shares.keys() - served):
            raise Misfit("is a version which no engine has", "model", name, version)
        if name in served:
            raise Misfit("has a version's name; choose another", "model", name)
    keys = [tenant.key for tenant in settings.tenants.values()]
    is_alone = len(keys) == 1 and settings.address.is_loopback
    if None in keys and not is_alone:
        problem = (
            "has one without a key_file; only a single tenant on a loopback address needs none"
        )
        raise Misfit(problem, "tenant")
    if len({*keys}) < len(keys):
        raise Misfit("has two with the same key; give each its own", "tenant")
