"""The options of `ullage ui`."""

from __future__ import annotations

from dataclasses import dataclass

from ullage.ground.protocol.option import OPTIONS, SETTINGS, Port


@dataclass(frozen=True, slots=True)
class UiOptions:
    """Where the local page is served, and which interpreters make its checks."""

    port: Port = OPTIONS("Port to listen on; default: any free one.", "N", default=0)
    no_browser: bool = OPTIONS.switch("Print the address without opening a browser.")
    python: str | None = OPTIONS("Interpreter for checks on a simulated GPU.", "PATH")
    vllm_python: str | None = SETTINGS("Interpreter whose vLLM checks servers.", "PATH")
