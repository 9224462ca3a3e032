"""`ullage watch`: shows what the GPUs of this machine do."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ullage.api.listen import ListenOptions
from ullage.api.watch import read_samples, watch_gpus
from ullage.cli.main import drop_stdout, say
from ullage.cli.options import flags
from ullage.cli.output import FILE
from ullage.errors import SpecError
from ullage.watch.recording import Recording
from ullage.watch.sample import Sample
from ullage.watch.view import view

if TYPE_CHECKING:
    from ullage.api.listen import Exporter
    from ullage.watch.alerts.rule import Rule


@click.command("watch")
@click.option("--once", is_flag=True, help="Print the state of now, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a line for each sample.")
@click.option(
    "--interval",
    type=float,
    default=1.0,
    metavar="SECONDS",
    help="Time between two samples, from 0.1; default: 1.",
)
@click.option("--record", type=FILE, metavar="FILE", help="Also keep every sample in a file.")
@click.option("--replay", type=FILE, metavar="FILE", help="Show such a file, not this machine.")
@click.option("--alerts", is_flag=True, help="Print alerts as they are raised and cleared.")
@click.option(
    "--config", type=FILE, metavar="FILE", help="Rules of alerts; default: ullage.toml, if any."
)
@click.option(
    "--listen", metavar="[HOST:]PORT", help="Serve metrics to Prometheus; default host: 127.0.0.1."
)
@click.option("--token-file", type=FILE, metavar="FILE", help="Token that scrapes have to bring.")
@click.option("--certificate", type=FILE, metavar="FILE", help="Serve over TLS; PEM.")
@click.option("--key", type=FILE, metavar="FILE", help="The certificate's key; PEM.")
@click.option("--names", is_flag=True, help="Let --listen have programs' names too.")
@flags.force
def watch_command(
    *,
    once: bool,
    as_json: bool,
    interval: float,
    record: Path | None,
    replay: Path | None,
    alerts: bool,
    config: Path | None,
    listen: str | None,
    token_file: Path | None,
    certificate: Path | None,
    key: Path | None,
    names: bool,
    force: bool,
) -> int | None:
    """Watch the GPUs of this machine: memory, load, processes, and the jobs that `ullage record`
    runs, with the distance to their limit.

    \b
    ullage watch
    ullage watch --once
    ullage watch --alerts
    ullage watch --json --interval 0.1 --record night.jsonl
    ullage watch --listen 9400

    With --listen it serves /metrics until it is interrupted; beyond this machine only with
    --token-file or TLS. With --alerts and --replay it exits with 1 if an alert was raised.

    On a terminal it opens a page; `h` there shows its keys. Needs: pip install 'ullage[watch]'.
    """
    if record is not None and replay is not None:
        raise SpecError("--record keeps what happens now; it does not go with --replay")
    with ExitStack() as files:
        options = ListenOptions(listen, token_file, certificate, key, names, interval)
        is_past = once or replay is not None
        exporter = _enter_exporter(files, options, is_past=is_past)
        shows_page = not exporter and (record is None or _is_terminal())
        is_shown = not alerts and (once or as_json or shows_page)
        if alerts or config is not None:
            from ullage.cli.alerts import check_alert_options, show_alerts, show_replayed_alerts

            check_alert_options(alerts=alerts, once=once, config=config, is_shown=is_shown)
            if alerts and replay is not None:
                return show_replayed_alerts(replay, config, as_json=as_json)
        rules = _read_rules(config) if is_shown else ()  # a wrong one is refused first
        stream = _replayed(replay) if replay is not None else watch_gpus(interval)
        gc.freeze()  # what is loaded by now stays: it need not be looked through again and again
        if record is not None:
            stream = _recorded(stream, files.enter_context(Recording(record, force=force)))
            files.callback(say, f"Wrote {record}", is_aside=True)
        if exporter is not None:
            stream = exporter.publish(stream)
        if alerts:
            show_alerts(stream, config, as_json=as_json, on_event=getattr(exporter, "note", None))
        elif is_shown:
            is_replay = replay is not None
            _show(stream, rules, once=once, as_json=as_json, is_replay=is_replay)
        else:
            _exhaust(stream)  # a recorder or an exporter in the background says nothing
    return None


def _enter_exporter(files: ExitStack, options: ListenOptions, *, is_past: bool) -> Exporter | None:
    """What serves metrics, until `files` is closed."""
    has_files = options.token_file or options.certificate or options.key
    if options.address is None and not has_files and not options.with_names:
        return None
    from ullage.cli.listen import enter_exporter

    return enter_exporter(files, options, is_past=is_past)


def _is_terminal() -> bool:
    return all(each.isatty() for each in (sys.stdin, sys.stdout, sys.stderr))


def _show(
    stream: Iterator[Sample],
    rules: Sequence[Rule],
    *,
    once: bool,
    as_json: bool,
    is_replay: bool,
) -> None:
    """Lines of JSON; on a terminal the page; else text."""
    if as_json and not once:
        _print_lines(stream, rules)
    elif _is_terminal() and not once:
        _import_asyncio()
        from ullage.ui.terminal.page import show_page

        gc.freeze()
        show_page(stream, rules, is_replay=is_replay)
    else:
        _print_once(stream, rules, as_json=as_json, is_replay=is_replay)


def _import_asyncio() -> None:
    """Imports asyncio, on which the page runs, without TLS: OpenSSL takes 4 MiB, and the page talks
    to no one. Whatever needs `ssl` later imports it as ever.
    """
    if "ssl" in sys.modules or "asyncio" in sys.modules:
        return
    sys.modules["ssl"] = None  # type: ignore[assignment] # as Python's import system has it: absent
    try:
        import asyncio  # noqa: F401
    finally:
        del sys.modules["ssl"]


def _read_rules(config: Path | None) -> tuple[Rule, ...]:
    from ullage.api.alerts import read_rules

    return read_rules(config).rules


def _exhaust(stream: Iterator[Sample]) -> None:
    for _ in stream:
        continue


def _replayed(path: Path) -> Iterator[Sample]:
    return read_samples(path, on_warning=lambda text: say(f"ullage: {text}", is_aside=True))


def _recorded(stream: Iterator[Sample], recording: Recording) -> Iterator[Sample]:
    for sample in stream:
        recording.add(sample)
        yield sample


def _print_lines(stream: Iterator[Sample], rules: Sequence[Rule]) -> None:
    """Each sample's document in a line, as soon as there is one."""
    from ullage.report.document.watch import watch_line
    from ullage.watch.alerts.board import Board

    board = Board(rules)
    try:
        for sample in board.follow(stream):
            sys.stdout.write(f"{watch_line(view(sample), board.alerts)}\n")
            sys.stdout.flush()
    except BrokenPipeError:  # the reader needs no more
        drop_stdout()


def _print_once(
    stream: Iterator[Sample], rules: Sequence[Rule], *, as_json: bool, is_replay: bool
) -> None:
    """The first sample of a machine, or the last of a recording, with what went before."""
    from ullage.watch.alerts.board import Board
    from ullage.watch.history import History

    board, history = Board(rules), History()
    for sample in board.follow(stream):
        history.add(sample)
        if not is_replay:
            break
    if as_json:
        from ullage.report.document.watch import watch_document

        click.echo(json.dumps(watch_document(view(sample), board.alerts), indent=2))
        return
    from ullage.report.text.watch import print_watch

    print_watch(view(sample), history, board.alerts)
