"""A server whose engine is a process of its own, which it kills when it is asked to end."""

import json
import multiprocessing
import signal
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer


def run_engine(pipe):
    """Answers what comes through a pipe."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    import serve

    pipe.send("ready")
    while True:
        serve.chat(pipe.recv())
        pipe.send("done")


def main():
    """Passes requests on to the engine."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    engine = context.Process(target=run_engine, args=(theirs,), daemon=True)
    engine.start()
    ours.recv()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            count = len(body["prompt"])
            ours.send({"input_length": count, "output_length": body["max_tokens"]})
            ours.recv()
            self.send_response(200)
            self.end_headers()

    def end(*_):
        engine.kill()
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, end)
    HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()


if __name__ == "__main__":
    main()
