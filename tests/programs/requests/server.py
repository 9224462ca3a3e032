"""The same model behind HTTP: server.py PORT [leak|fail|die|refuse|oom|stubborn|unready|ends]."""

import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import serve
import torch

PORT, MODE = int(sys.argv[1]), (*sys.argv[2:], "")[0]
SPECIAL = 300


class Handler(BaseHTTPRequestHandler):
    """Completions, and transcriptions of uploaded audio."""

    def do_GET(self):
        """Whether it is ready."""
        self.answer(503 if MODE == "unready" else 200, {})

    def do_POST(self):
        """One request; what goes wrong is answered with 500."""
        content = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            self.answer(200, self.complete(content))
        except Exception as error:
            self.answer(500, {"error": str(error)})

    def complete(self, content):
        """The answer."""
        if self.path == "/v1/audio/transcriptions":
            serve.listen({"audio_s": len(content) / 32_000})
            return {"text": "", "has_model": b'name="model"\r\n\r\nwhisper' in content}
        body = json.loads(content)
        count = len(body["prompt"])
        if count == SPECIAL and MODE == "fail":
            raise ValueError("300 tokens are not allowed")
        if count == SPECIAL and MODE == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if count == SPECIAL and MODE == "oom":
            torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
        if MODE == "leak":
            serve.kept.append(torch.zeros(64 << 10, dtype=torch.uint8, device="cuda"))
        serve.chat({"input_length": count, "output_length": body["max_tokens"]})
        return {"model": body["model"]}

    def answer(self, status, what):
        """Sends a document."""
        content = json.dumps(what).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments):
        """Says nothing."""


if MODE == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if MODE == "ends":
    raise SystemExit(0)
ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
