"""`ullage front`: admits requests to servers of language models by the cache bytes they take."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ullage.ground.units import format_bytes
from ullage.verbs.command_line.command import command
from ullage.verbs.command_line.streams import refuse_reload, say
from ullage.verbs.front.options import FrontOptions

if TYPE_CHECKING:
    from ullage.operate.front.settings import FrontSettings


@command()
def front_command(options: FrontOptions) -> None:
    """Serve OpenAI's API in front of one or several engines, within their caches.

    \b
    ullage front --check
    ullage front --config ullage.toml

    A request starts once its KV cache fits an engine until the request ends, so that engines need
    not preempt. Tenants share the cache by weight, in bytes times seconds. Requests that cannot
    start in time are refused with Retry-After. The table [front] of the configuration names the
    engines, tenants and limits. The front listens on 127.0.0.1 by default. Ctrl-C ends it.

    What it needs besides ullage itself: pip install 'ullage[front]'.
    """
    from ullage.operate.front.proxy.server import serve_front
    from ullage.operate.front.settings import load_front

    settings = load_front(Path.cwd(), options.config)
    for line in _describe(settings):
        say(line)
    if not options.check:
        refuse_reload()
        serve_front(settings, lambda url: say(f"Serving {url}\nCtrl-C ends it."))


def _describe(settings: FrontSettings) -> list[str]:
    """The settings in force, assumptions included."""
    lines = [f"configuration: {settings.path}"]
    for name, engine in settings.engines.items():
        spec = engine.spec
        tokens = spec.cache_bytes // spec.footprint.token_bytes
        lines.append(
            f"engine {name}: {engine.address}, {format_bytes(spec.cache_bytes)} of "
            f"cache for {tokens:,} tokens, {', '.join(spec.models)}"
        )
        if engine.tokenizer is None:
            lines.append(
                f"  no tokenizer: assumes {settings.characters_per_token:g} characters a token"
            )
    for name, tenant in settings.tenants.items():
        deadline = "no deadline" if tenant.deadline_s is None else f"{tenant.deadline_s:g} s"
        lines.append(f"tenant {name}: weight {tenant.spec.weight:g}, first token: {deadline}")
    share = "max_tokens" if settings.quantile is None else f"{100 * settings.quantile:g}%"
    lines.append(
        f"reserves room for: {share} of answers; assumes max_tokens {settings.max_tokens} where "
        "a request does not say"
    )
    return lines
