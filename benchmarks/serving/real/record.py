"""Records a real vLLM server: its log, the turns of its scheduler, and when requests had answers.

    python record.py plan.json MODELS OUT        # on a machine with a GPU, vLLM and aiohttp

Needs this folder alone. plan.json is what plan.py writes; MODELS holds a folder of each of its
models, made by make_model.py. Weights are dummies (`--load-format dummy`), and prompts are text, so
that the server tokenizes. OUT gets a folder of each server: server.log, requests.json,
steps-PID.jsonl. store.py makes tables of them.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
PORT: Final = 8100
START_S: Final = 300
_NUM_TEXTS: Final = 16
"""Different prompts of a length; the prefix cache is off."""


class Texts:
    """Prompts of so many tokens, as text of made-up words (make_model.py)."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        words = (folder.parent / "words.txt").read_text(encoding="utf-8")
        self._ids = self._tokenizer.encode(words).ids
        self._made: dict[tuple[int, int], str] = {}

    def prompt(self, tokens: int, number: int) -> str:
        """A prompt; equal numbers have equal ones."""
        key = tokens, number % _NUM_TEXTS
        if key not in self._made:
            begin = key[1] * 4001 % max(1, len(self._ids) - tokens)
            self._made[key] = self._tokenizer.decode(self._ids[begin : begin + tokens])
        return self._made[key]


class Client:
    """Sends requests to a server, and keeps a row of each: load, number, sent, first, last, tokens
    of the prompt and of the answer, the server's name for it, error. Moments are of
    time.perf_counter.
    """

    def __init__(self, port: int, texts: Texts) -> None:
        self._url, self._texts = f"http://127.0.0.1:{port}/v1/completions", texts
        self.rows: list[list[Any]] = []

    async def send(self, load: dict[str, Any]) -> None:
        """All requests of a load."""
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=600)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            if "users" in load:
                await self._send_closed(session, load)
            else:
                await self._send_open(session, load)

    async def _send_closed(self, session: Any, load: dict[str, Any]) -> None:
        numbers = iter(range(load["requests"]))

        async def user() -> None:
            for number in numbers:
                text = self._texts.prompt(load["prompt"], number)
                await self._ask(session, load["name"], number, text, load["output"])

        await asyncio.gather(*(user() for _ in range(load["users"])))

    async def _send_open(self, session: Any, load: dict[str, Any]) -> None:
        begin_s = time.perf_counter()
        texts = [self._texts.prompt(tokens, n) for n, tokens in enumerate(load["prompts"])]

        async def ask(number: int) -> None:
            await asyncio.sleep(load["arrival_s"][number] - (time.perf_counter() - begin_s))
            await self._ask(
                session, load["name"], number, texts[number], load["outputs"][number]
            )  # fmt: skip

        await asyncio.gather(*(ask(number) for number in range(len(texts))))

    async def _ask(self, session: Any, load: str, number: int, text: str, output: int) -> None:
        body = {
            "model": "m", "prompt": text, "max_tokens": output, "ignore_eos": True, "stream": True,
            "temperature": 0.0, "stream_options": {"include_usage": True},
        }  # fmt: skip
        sent_s = time.perf_counter()
        row: list[Any] = [load, number, sent_s, *[None] * 6]
        self.rows.append(row)
        async with session.post(self._url, json=body) as answer:
            if answer.status != 200:
                row[8] = (await answer.text())[:300]
                return
            async for line in answer.content:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                row[7] = event["id"]
                if event["choices"]:
                    row[4] = time.perf_counter()
                    row[3] = row[3] or row[4]
                elif event.get("usage"):
                    row[5], row[6] = (
                        event["usage"][name] for name in ("prompt_tokens", "completion_tokens")
                    )


def wait_for(process: subprocess.Popen[bytes], port: int) -> bool:
    """Until the server answers; False: it ended, or did not come."""
    for _ in range(2 * START_S):
        if process.poll() is not None:
            return False
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                return True
        except OSError:
            time.sleep(0.5)
    return False


def install_plugin(site: Path) -> None:
    """Lets vLLM find steplog.py."""
    (site / "steplog.py").write_bytes((HERE / "steplog.py").read_bytes())
    facts = site / "steplog-1.0.dist-info"
    facts.mkdir()
    text = "[vllm.general_plugins]\nsteplog = steplog:install\n"
    (facts / "entry_points.txt").write_text(text, encoding="utf-8")
    (facts / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: steplog\nVersion: 1.0\n", encoding="utf-8"
    )


def record(server: dict[str, Any], port: int, models: Path, site: Path, folder: Path) -> None:
    """One server."""
    model = models / server["model"]
    environment = {
        **os.environ, "STEPLOG_FOLDER": str(folder), "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    words = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model),
        "--served-model-name", "m", "--load-format", "dummy", "--host", "127.0.0.1",
        "--port", str(port), *server["flags"],
    ]  # fmt: skip
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            words, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            if not wait_for(process, port):
                raise SystemExit(f"{server['name']} did not start: see {folder / 'server.log'}")
            client = Client(port, Texts(model))
            for load in server["loads"]:
                asyncio.run(client.send(load))
                (folder / "requests.json").write_text(json.dumps(client.rows), encoding="utf-8")
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def main() -> None:
    """Records the servers of a plan, one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("plan", "models", "out"):
        parser.add_argument(name, type=Path)
    args = parser.parse_args()
    servers = json.loads(args.plan.read_text(encoding="utf-8"))
    with TemporaryDirectory() as site:
        install_plugin(Path(site))
        for server, port in zip(servers, itertools.count(PORT), strict=False):
            folder = args.out / server["name"]
            folder.mkdir(parents=True)
            record(server, port, args.models, Path(site), folder)


if __name__ == "__main__":
    main()
