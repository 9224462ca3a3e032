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

from ullage.ground.errors import SpecError
from ullage.operate.watch.recording import Recording
from ullage.operate.watch.sample import Sample
from ullage.operate.watch.view import view
from ullage.verbs.command_line.command import command
from ullage.verbs.command_line.streams import drop_stdout, refuse_reload, say
from ullage.verbs.watch.function import read_samples, watch_gpus
from ullage.verbs.watch.options import WatchOptions

if TYPE_CHECKING:
    from ullage.operate.watch.alerts.rule import Rule
    from ullage.verbs.watch.listen_function import Exporter


@command()
def watch_command(options: WatchOptions) -> int | None:
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
    if options.record is not None and options.replay is not None:
        raise SpecError("--record keeps what happens now; it does not go with --replay")
    replay, config, as_json = options.replay, options.config, options.as_json
    with ExitStack() as files:
        exporter = _enter_exporter(files, options)
        shows_page = not exporter and (options.record is None or _is_terminal())
        is_shown = not options.alerts and (options.once or as_json or shows_page)
        if options.alerts or config is not None:
            from ullage.verbs.watch.alerts_command import (
                check_alert_options,
                show_alerts,
                show_replayed_alerts,
            )

            check_alert_options(options, is_shown=is_shown)
            if options.alerts and replay is not None:
                return show_replayed_alerts(replay, config, as_json=as_json)
        rules = _read_rules(config) if is_shown else ()  # a wrong one is refused first
        stream = _replayed(replay) if replay is not None else watch_gpus(options.interval)
        gc.freeze()  # what is loaded by now stays: it need not be looked through again and again
        if options.record is not None:
            recording = Recording(options.record, force=False)
            stream = _recorded(stream, files.enter_context(recording))
            files.callback(say, f"Wrote {options.record}", is_aside=True)
        if exporter is not None:
            stream = exporter.publish(stream)
        if options.alerts:
            show_alerts(stream, config, as_json=as_json, on_event=getattr(exporter, "note", None))
        elif is_shown:
            _show(stream, rules, options)
        else:
            _exhaust(stream)  # a recorder or an exporter in the background says nothing
    return None


def _enter_exporter(files: ExitStack, options: WatchOptions) -> Exporter | None:
    if options.listen is None:
        return None
    if options.once or options.replay is not None:
        raise SpecError("--listen serves what happens now; it does not go with --once or --replay")
    from ullage.verbs.watch.listen_function import open_exporter

    exporter = files.enter_context(open_exporter(options))
    refuse_reload()
    say(f"Serving {exporter.url}", is_aside=True)
    return exporter


def _is_terminal() -> bool:
    return all(each.isatty() for each in (sys.stdin, sys.stdout, sys.stderr))


def _show(stream: Iterator[Sample], rules: Sequence[Rule], options: WatchOptions) -> None:
    """Lines of JSON; on a terminal the page; else text."""
    is_replay = options.replay is not None
    if options.as_json and not options.once:
        _print_lines(stream, rules)
    elif _is_terminal() and not options.once:
        _import_asyncio()
        from ullage.verbs.watch.terminal.page import show_page

        gc.freeze()
        show_page(stream, rules, is_replay=is_replay)
    else:
        _print_once(stream, rules, as_json=options.as_json, is_replay=is_replay)


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
    from ullage.verbs.watch.alerts_function import read_rules

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
    from ullage.operate.watch.alerts.board import Board
    from ullage.verbs.watch.document import watch_line

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
    from ullage.operate.watch.alerts.board import Board
    from ullage.operate.watch.history import History

    board, history = Board(rules), History()
    for sample in board.follow(stream):
        history.add(sample)
        if not is_replay:
            break
    if as_json:
        from ullage.verbs.watch.document import watch_document

        click.echo(json.dumps(watch_document(view(sample), board.alerts), indent=2))
        return
    from ullage.verbs.watch.text import print_watch

    print_watch(view(sample), history, board.alerts)
