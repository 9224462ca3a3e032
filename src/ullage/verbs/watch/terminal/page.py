"""The page of `ullage watch`: the tree of GPUs, jobs and processes, drawn again with each sample.

    show_page(watch_gpus())

Samples are read in a thread of their own, so that a driver that hangs does not stop the keys. The
page is drawn at most once a second, or when a key is pressed; samples that come faster are read,
and recorded, all the same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar, Final, TypeVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.message import Message
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from ullage.ground.printable import printable
from ullage.operate.watch.alerts.board import Board
from ullage.operate.watch.alerts.rule import Rule
from ullage.operate.watch.history import History
from ullage.operate.watch.sample import ProcessSample, Sample
from ullage.operate.watch.view import GpuView, JobView, View, view
from ullage.verbs.watch.alerts_text import active_rows, history_lines
from ullage.verbs.watch.terminal.details import describe, find_record, name_owners
from ullage.verbs.watch.terminal.rows import Rows
from ullage.verbs.watch.terminal.tree import Tree
from ullage.verbs.watch.text import Line, Style, gpu_lines, head_line, legend, note_lines

_DRAWN_S = 1.0
# Rows of alerts, on a screen that is tall and on one that is not.
_TALL: Final = 40
_MANY_ALERTS: Final = 8
_FEW_ALERTS: Final = 3
# A recording that was interrupted goes on after so long.
_MAX_GAP_S = 10.0
_KEYS = "enter inspect  s sort  / filter  a processes  l alerts  n notes  h help  q quit"
_HELP = """\
Keys
  up, down, j, k   choose a GPU, job or process
  pgup, pgdn       a screen up or down; home, end: first, last
  enter            inspect the choice; there o: owners of its memory
  s                sort GPUs: number, memory, load, distance to the limit
  /                filter by name, user, number, pod; escape: all
  a                other processes of a GPU: ten, all, none
  l                alerts: all that are raised, and what came before
  n                why values are unknown
  space            pause, go on
  h                this help
  q                quit

The bar of a GPU: what recorded jobs have allocated; what is free in
segments that are partly in use (fragmented); what else their allocators
keep (cached); all other processes; free.
To the limit: what a job can allocate beyond its last step's peak.
Full in: when it is there if its steps' peaks go on growing."""


class Details(ModalScreen[None]):
    """Rows about one thing, above the page."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,enter,h,l,n", "dismiss", "Close"),
        Binding("o", "owners", "Owners"),
    ]
    CSS = """
    Details { align: center middle; }
    Details VerticalScroll { width: auto; max-width: 100%; height: auto; max-height: 90%;
        border: round $accent; padding: 0 1; background: $surface; }
    Details Static { width: auto; }
    """

    def __init__(self, text: str, owners: Callable[[], str] | None = None) -> None:
        super().__init__()
        self._shown, self._owners = text, owners

    def compose(self) -> ComposeResult:
        """The rows in a frame."""
        with VerticalScroll():
            yield Static(Text(self._shown), id="rows")

    def action_owners(self) -> None:
        """Reads the job's latest record in a thread: it may be large."""
        if self._owners is None:
            return
        app, owners, self._owners = self.app, self._owners, None
        self._add("reading the job's latest record ...")

        def read() -> None:
            text = owners()
            with suppress(RuntimeError):  # the page has been closed
                app.call_from_thread(self._add, text)

        threading.Thread(target=read, daemon=True).start()

    def _add(self, text: str) -> None:
        if self.is_attached:
            self.query_one("#rows", Static).update(Text(f"{self._shown}\n\n{text}"))
            frame = self.query_one(VerticalScroll)
            self.call_after_refresh(frame.scroll_end, animate=False)


class WatchPage(App[None]):
    """The page; `stream` yields the samples, and is read in a thread; `rules` are those of the
    alerts that it shows.
    """

    TITLE = "ullage watch"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("s", "sort", "Sort"),
        Binding("slash", "filter", "Filter"),
        Binding("a", "processes", "Processes"),
        Binding("l", "alerts", "Alerts"),
        Binding("n", "notes", "Notes"),
        Binding("space", "pause", "Pause"),
        Binding("h,question_mark", "help", "Help"),
        Binding("escape", "clear", "All", show=False),
    ]
    CSS = """
    #head, #state, #foot { height: 1; }
    #alerts { height: 0; }
    #filter { height: 1; border: none; padding: 0 1; display: none; }
    #filter.open { display: block; }
    Tree { height: 1fr; overflow-x: hidden; scrollbar-size-vertical: 1; }
    """

    class Read(Message):
        """A sample, an error that ends the page, or None: a recording is over, its end stays."""

        def __init__(self, news: Sample | Exception | None) -> None:
            super().__init__()
            self.news = news

    def __init__(
        self, stream: Iterator[Sample], rules: Sequence[Rule] = (), *, is_replay: bool = False
    ) -> None:
        super().__init__()
        self._board = Board(rules)
        self._stream, self._is_replay = self._board.follow(stream), is_replay
        self._history = History()
        self._drawn: dict[int, tuple[object, Sequence[Line]]] = {}  # by position of the GPU
        self._seen: View | None = None
        self._is_paused = self._is_over = False
        self._stopping = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        # Textual looks for a widget by its name in all of the page, each second anew.
        self._tree, self._head = Tree(), Rows("head")
        self._alerts, self._state = Rows("alerts"), Rows("state")
        self.arrangement = Arrangement()
        self.error: Exception | None = None

    def compose(self) -> ComposeResult:
        """Machine, tree, filter, legend and keys."""
        yield self._head
        yield self._tree
        yield self._alerts
        yield Input(id="filter", placeholder="name, user, number, pod or job")
        yield self._state
        yield Rows("foot")

    def on_mount(self) -> None:
        """Begins to read."""
        self.query_one(Tree).focus()
        self.query_one("#foot", Rows).show([Text(_KEYS, style="bright_black")])
        self._reader.start()

    def on_unmount(self) -> None:
        """Lets the reader end."""
        self._stopping.set()

    def on_resize(self) -> None:
        """The lines are as long as the screen is wide."""
        self._draw()

    def _read(self) -> None:
        """In the thread: takes samples until the page is closed; a recording at its own pace."""
        told_s, before_s = -_DRAWN_S, None
        latest: Sample | None = None
        try:
            for sample in self._stream:
                if self._is_replay and before_s is not None:
                    self._stopping.wait(min(max(sample.time_s - before_s, 0.0), _MAX_GAP_S))
                if self._stopping.is_set():
                    return
                before_s, latest = sample.time_s, sample
                # To wake the page ten times a second costs more than to read the GPUs.
                if time.monotonic() - told_s >= _DRAWN_S * 0.95:
                    told_s, latest = time.monotonic(), None
                    self._tell(sample)
            if latest is not None:
                self._tell(latest)
        except Exception as error:  # it is raised again once the terminal is given back
            self._tell(error)
            return
        self._tell(None)

    def _tell(self, news: Sample | Exception | None) -> None:
        """Hands something to the page, from the thread."""
        with suppress(RuntimeError):  # the page has been closed
            self.post_message(self.Read(news))

    def on_watch_page_read(self, event: Read) -> None:
        """Takes what the thread has read."""
        if isinstance(event.news, Sample):
            self.take(event.news)
        elif event.news is not None:
            self.error = event.news
            self.exit()
        else:
            self._is_over = True
            self._draw()

    def take(self, sample: Sample) -> None:
        """Draws a sample, unless the page is paused."""
        self._history.add(sample)
        if not self._is_paused:
            self._seen = view(sample)
            self._draw()

    def _draw(self) -> None:
        machine = self._seen
        if machine is None or not self._tree.is_attached:
            return
        head = head_line(machine.sample)
        head.append("  PAUSED" if self._is_paused else "  END" if self._is_over else "", "bold red")
        self._head.show([head])
        self._tree.show(self._lines(machine))
        self._draw_alerts(machine.sample.time_s)
        style = Style(self.size.width)
        order = f"by {self.arrangement.order}"
        text = self.arrangement.pattern
        words = f"{order}, filter {text!r}" if text else order
        state = legend(style).append(printable(words), "bold")
        state.append(
            f"  {len(machine.sample.notes)} notes" if machine.sample.notes else "", "yellow"
        )
        self._state.show([state])

    def _draw_alerts(self, now_s: float) -> None:
        """As many as there is room for, and no row if there are none."""
        room = _MANY_ALERTS if self.size.height >= _TALL else _FEW_ALERTS
        texts = active_rows(self._board.alerts.active, now_s, self.size.width, room)
        if len(texts) != self._alerts.num_rows:
            self._alerts.styles.height = len(texts)
        self._alerts.show(texts)

    def _lines(self, machine: View) -> list[Line]:
        style = Style(self.size.width - 2, max_processes=self.arrangement.max_processes)
        lines: list[Line] = []
        for position, shown in arrange(machine, self.arrangement):
            lines += [Line(Text())] if lines and style.is_wide else []
            lines += self._gpu_lines(shown, position, style, machine.gpus[position])
        return lines or [Line(Text("no GPU, job or process that the filter lets through"))]

    def _gpu_lines(
        self, shown: GpuView, position: int, style: Style, whole: GpuView
    ) -> Sequence[Line]:
        """The lines of a GPU: as before if nothing of it has changed. Jobs have an age."""
        course = self._history.of(whole.device)
        state = (shown.device, shown.others, shown.sharing, course, style)
        known = self._drawn.get(position)
        # Equal devices are nearly always one object, and to compare tuples begins with that.
        if known is not None and not whole.jobs and known[0] == state:
            return known[1]
        lines = gpu_lines(shown, position, self._history, style, whole)
        self._drawn[position] = (state, lines)
        return lines

    def action_sort(self) -> None:
        """The next order."""
        self.arrangement = self.arrangement.with_next_order()
        self._draw()

    def action_processes(self) -> None:
        """The next number of processes that are shown of a GPU."""
        self.arrangement = self.arrangement.with_next_count()
        self._draw()

    def action_filter(self) -> None:
        """Opens the line for the filter."""
        field = self.query_one("#filter", Input)
        field.add_class("open")
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filters while one types."""
        self.arrangement = self.arrangement.with_pattern(event.value)
        self._draw()

    def on_input_submitted(self) -> None:
        """Keeps the filter, and gives the keys back to the tree."""
        self.query_one("#filter", Input).remove_class("open")
        self.query_one(Tree).focus()

    def action_clear(self) -> None:
        """Shows all again."""
        field = self.query_one("#filter", Input)
        field.value = ""
        self.on_input_submitted()

    def action_pause(self) -> None:
        """Holds the page still, or lets it go on."""
        self._is_paused = not self._is_paused
        self._draw()

    def action_help(self) -> None:
        """Shows the keys."""
        self.push_screen(Details(_HELP))

    def action_alerts(self) -> None:
        """Shows every alert that is raised, and what was raised and cleared before."""
        alerts, width = self._board.alerts, self.size.width - 4
        now_s = time.time() if self._seen is None else self._seen.sample.time_s
        rows = [row.plain for row in active_rows(alerts.active, now_s, width, 1000)]
        lines = ["Raised", *(rows or ["none"])]
        if alerts.events:
            lines += ["", "Before", *history_lines(alerts.events, now_s, width)]
        self.push_screen(Details("\n".join(lines)))

    def action_notes(self) -> None:
        """Shows why values are unknown."""
        notes = [] if self._seen is None else note_lines(self._seen.sample)
        text = "\n".join(note.plain for note in notes)
        self.push_screen(Details(text or "Every value is known."))

    def on_tree_inspected(self, event: Tree.Inspected) -> None:
        """Shows what is known of the choice."""
        position, pid = event.key
        if self._seen is None or position is None or position >= len(self._seen.gpus):
            return
        gpu = self._seen.gpus[position]
        jobs = [job for job in gpu.jobs if job.job.pid == pid]
        text = _table(describe(gpu, pid)) or "It has ended."
        if not jobs:
            self.push_screen(Details(text))
            return

        def owners() -> str:
            path = find_record(jobs[0])
            if path is None:
                return "No record of this job is in its directory that this user may read."
            return "Owners at the peak\n" + _table(name_owners(path))

        self.push_screen(Details(f"{text}\n\no: owners of its memory", owners))


def _table(rows: list[tuple[str, str]]) -> str:
    width = max((len(label) for label, _ in rows), default=0)
    return "\n".join(printable(f"{label:<{width}}  {value}") for label, value in rows)


def show_page(
    stream: Iterator[Sample], rules: Sequence[Rule] = (), *, is_replay: bool = False
) -> None:
    """Shows the page until it is closed.

    Raises:
        UllageError: what the stream raises; the terminal is given back before.
    """
    page = WatchPage(stream, rules, is_replay=is_replay)
    page.run()
    if page.error is not None:
        raise page.error


_T = TypeVar("_T")
_FAR: Final = float("inf")


def _headroom(gpu: GpuView) -> float:
    """The smallest distance of a job to its limit."""
    distances = (job.headroom_bytes for job in gpu.jobs)
    return min((distance for distance in distances if distance is not None), default=_FAR)


# What GPUs are sorted by: lowest first.
ORDERS: Final = MappingProxyType(
    {
        "number": lambda gpu: 0.0,
        "memory": lambda gpu: -float(gpu.device.used_bytes or 0),
        "load": lambda gpu: -float(gpu.device.gpu_frac or 0.0),
        "distance to the limit": _headroom,
    }
)
# How many processes that publish nothing are shown of a GPU.
COUNTS: Final = (10, 1_000_000, 0)


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The arrangement that the user has chosen."""

    order: str = "number"
    pattern: str = ""
    max_processes: int = COUNTS[0]

    def with_next_order(self) -> Arrangement:
        """The next of ORDERS."""
        return replace(self, order=_next(tuple(ORDERS), self.order))

    def with_next_count(self) -> Arrangement:
        """The next of COUNTS."""
        return replace(self, max_processes=_next(COUNTS, self.max_processes))

    def with_pattern(self, pattern: str) -> Arrangement:
        """Another filter; empty: none."""
        return replace(self, pattern=pattern.strip())


def _next(values: tuple[_T, ...], value: _T) -> _T:
    return values[(values.index(value) + 1) % len(values)]


def arrange(machine: View, arrangement: Arrangement) -> Iterator[tuple[int, GpuView]]:
    """The GPUs that are shown, each with its place in the sample and what is shown of it.

    A filter that fits a GPU shows all of it; else it shows the jobs and processes that it fits.
    """
    gpus = sorted(enumerate(machine.gpus), key=lambda item: ORDERS[arrangement.order](item[1]))
    words = arrangement.pattern.lower()
    for position, gpu in gpus:
        if not words or _fits(words, f"gpu {gpu.device.index}", gpu.device.name, gpu.device.uuid):
            yield position, gpu
            continue
        jobs = tuple(job for job in gpu.jobs if _fits_job(words, job))
        others = tuple(process for process in gpu.others if _fits(words, *_texts(process)))
        if jobs or others:
            yield position, replace(gpu, jobs=jobs, others=others)


def _fits_job(words: str, view: JobView) -> bool:
    texts = _texts(view.process) if view.process is not None else ()
    return _fits(words, view.job.name, str(view.job.pid), view.job.phase, *texts)


def _texts(process: ProcessSample) -> tuple[str | None, ...]:
    return (
        str(process.pid),
        process.name,
        process.user,
        process.container,
        process.container_name,
        process.pod,
        process.pod_name,
        process.pod_namespace,
        process.slurm_job,
        process.slurm_array,
    )


def _fits(words: str, *texts: str | None) -> bool:
    return any(words in text.lower() for text in texts if text)
