"""Any bytes as what somebody else writes and ullage reads as text: a log of a server, the body of a
request, a page of metrics, rules of alerts, a plan or a ladder, a configuration.

Nothing but the errors of each reader may come out. Run by run.py; the first argument is the reader.

    python tests/fuzz/read_texts.py bodies CORPUS -runs=1000000 -max_len=4096
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["ullage"]):
    from ullage.act.techniques.ladder_file import LadderFile
    from ullage.act.techniques.plan import Plan
    from ullage.explain.servers.reader import read_start
    from ullage.ground.errors import PlanError, SpecError
    from ullage.operate.doors.refusal import Refusal
    from ullage.operate.front.policy.versions import Versions
    from ullage.operate.front.proxy.fields import FIELDS
    from ullage.operate.front.proxy.monitor import read_metrics
    from ullage.operate.front.proxy.order import OrderReader
    from ullage.operate.front.settings import load_front
    from ullage.operate.watch.alerts.rules_file import load_settings
    from ullage.verbs.check.gate.config import load_configuration

SCRATCH = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
CONFIGURATION = SCRATCH / "ullage.toml"
FRONT = """
[front]
fields.more = "text"
[front.engine.a]
url = "http://127.0.0.1:8001"
models = ["m"]
cache = "1GiB"
token_bytes = 1000
media_tokens = 10
[front.tenant.a]
key_file = "a"
max_tokens = 64
trim = "oldest-messages"
"""


def read_log(content: bytes) -> None:
    """A log of a server."""
    with contextlib.suppress(SpecError):
        start = read_start(content.decode(errors="replace"))
        assert start is None or repr(start)


@functools.cache
def order_reader() -> OrderReader:
    """Reads the bodies of requests to a front with one engine."""
    CONFIGURATION.write_text(FRONT)
    settings = load_front(SCRATCH, CONFIGURATION)
    return OrderReader(settings, Versions(settings.versions, lambda _: True))


def read_body(content: bytes) -> None:
    """The body of a request to each path."""
    for path in FIELDS:
        with contextlib.suppress(Refusal):
            order = order_reader().read(
                content, path, "a", lambda request: request.prompt_tokens < 50, number=1, now_s=0
            )
            assert order.body and order.request.sequences > 0


def read_page(content: bytes) -> None:
    """A page of an engine's metrics, as the front reads it and as `explain` does."""
    text = content.decode(errors="replace")
    with contextlib.suppress(ValueError):
        usage = read_metrics(text)[0]
        assert usage is None or 0 <= usage <= 1
    read_log(b"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 1\n" + content)


def read_rules(content: bytes) -> None:
    """Rules of alerts."""
    CONFIGURATION.write_bytes(content)
    with contextlib.suppress(SpecError):
        load_settings(SCRATCH, CONFIGURATION)


def read_plan(content: bytes) -> None:
    """A plan, and a ladder."""
    path = SCRATCH / "plan.json"
    path.write_bytes(content)
    with contextlib.suppress(PlanError):
        plan = Plan.load(path)
        assert Plan.parse(plan.text()).text() == plan.text()
    with contextlib.suppress(PlanError):
        assert LadderFile.load(path).document


def read_configuration(content: bytes) -> None:
    """Scenarios, and engines and tenants of a front."""
    CONFIGURATION.write_bytes(content)
    for load in (load_configuration, load_front):
        with contextlib.suppress(SpecError):
            load(SCRATCH, CONFIGURATION)


READERS: dict[str, Callable[[bytes], None]] = {
    "logs": read_log, "bodies": read_body, "metrics": read_page, "alerts": read_rules,
    "plans": read_plan, "configurations": read_configuration,
}  # fmt: skip


def main() -> None:
    """Runs until the options of libFuzzer say that it is enough."""
    warnings.simplefilter("error")
    reader = READERS[sys.argv.pop(1)]
    for name in ("a", "chat", "batch"):  # the files of keys that the seeds name
        (SCRATCH / name).write_text(name * 20)
    atheris.Setup(sys.argv, reader)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
