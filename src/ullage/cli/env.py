"""`ullage env`: makes a thin environment to run programs in."""

from __future__ import annotations

from pathlib import Path

import click

from ullage.phantom.environment import EnvironmentSpec, make_environment


@click.command("env")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path), metavar="DIR")
@click.option("--torch", metavar="VERSION", help="PyTorch's version; the newest if not given.")
@click.option(
    "-r",
    "--requirement",
    "requirements",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="Also install what this file lists (may be given several times).",
)
@click.option("--with-triton", is_flag=True, help="Bring Triton, which torch.compile needs.")
@click.option(
    "--python",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="The Python to make it with; the one that runs ullage if not given.",
)
@click.option("--force", is_flag=True, help="Replace an environment that holds something else.")
def env_command(
    directory: Path,
    *,
    torch: str | None,
    requirements: tuple[Path, ...],
    with_triton: bool,
    python: Path | None,
    force: bool,
) -> None:
    """Make a thin environment: PyTorch's CUDA build without NVIDIA's packages.

    `ullage run --python DIR/bin/python` runs programs in it. It takes about 1.5 GB instead of 5. An
    environment that already holds what is asked for is left as it is.
    """
    spec = EnvironmentSpec(torch, requirements, has_triton=with_triton, python=python)
    make_environment(directory, spec, force=force, progress=lambda line: click.echo(line, err=True))
    click.echo(f"Wrote {directory}")
