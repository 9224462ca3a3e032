"""Runs rules over samples: a pure function of them, whether they are taken now or long ago.

    for event in watch_rules(samples, DEFAULTS):
        print(event.line())

An incident is (rule, GPU, process, begin of its job). It is raised once, when its value has been
beyond the threshold for long enough, and cleared once, when it has been healthy for long enough, or
when its process has ended. A value that is not known changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ullage.operate.watch.alerts.event import Change, Event
from ullage.operate.watch.alerts.outlook import Lookout, gpu_id
from ullage.operate.watch.alerts.reading import Reading, Subject
from ullage.operate.watch.alerts.rule import Rule
from ullage.operate.watch.sample import Sample

# More samples a second tell the rules nothing: jobs publish once a second.
_INTERVAL_S: Final = 1.0
# A gap is longer than this many intervals, and than this many seconds.
_GAP_INTERVALS: Final = 5.0
_GAP_S: Final = 30.0
# The driver's list of processes lacks one now and then.
_NUM_MISSING: Final = 2
# A clock that was set back by more than this has been set, not corrected.
_CLOCK_S: Final = 5.0


class _Track:
    """The engine's state of a rule's subject; it changes."""

    __slots__ = ("beyond_s", "calm_s", "known_s", "num_missing", "raised")

    def __init__(self, known_s: float) -> None:
        self.known_s = known_s
        self.beyond_s: float | None = None
        self.calm_s: float | None = None
        self.raised: Event | None = None
        self.num_missing = 0


def watch_rules(samples: Iterable[Sample], rules: Sequence[Rule]) -> Iterator[Event]:
    """The events of samples, each as soon as it is known."""
    engine = Engine(rules)
    for sample in samples:
        yield from engine.take(sample)


class Engine:
    """The state of all rules.

    Args:
        rules: with different names.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = tuple(rules)
        self._tracks: dict[tuple[str, Subject], _Track] = {}
        self._time_s: float | None = None
        self._interval_s: float | None = None
        self._start()

    def _start(self) -> None:
        self._lookout = Lookout()
        self._meters = [(rule, rule.meter()) for rule in self._rules]

    @property
    def raised(self) -> tuple[Event, ...]:
        """The incidents that are not cleared."""
        return tuple(track.raised for track in self._tracks.values() if track.raised is not None)

    @property
    def _gap_s(self) -> float:
        """After a longer time without samples nobody knows what was in between."""
        return max(_GAP_S, _GAP_INTERVALS * (self._interval_s or 0.0))

    def take(self, sample: Sample) -> list[Event]:
        """Takes the next sample; returns what follows from it."""
        if self._time_s is not None:
            passed_s = sample.time_s - self._time_s
            if -_CLOCK_S < passed_s < _INTERVAL_S * 0.95:
                return []
            if passed_s <= -_CLOCK_S:
                self._set_back(sample.time_s)
            elif self._interval_s is not None and passed_s > self._gap_s:
                self._forget_pending()
            else:
                self._interval_s = passed_s
        self._time_s = sample.time_s
        outlook = self._lookout.look(sample)
        events = []
        for rule, meter in self._meters:
            readings = list(meter.read(outlook))
            for reading in readings:
                event = self._judge(rule, reading, sample)
                if event is not None:
                    events.append(event)
        return events + self._clear_vanished(sample)

    def _set_back(self, time_s: float) -> None:
        """The clock was set back: measures anew, and keeps the incidents."""
        self._start()
        self._forget_pending()
        for track in self._tracks.values():
            track.known_s = time_s

    def _forget_pending(self) -> None:
        for track in self._tracks.values():
            track.beyond_s = track.calm_s = None

    def _judge(self, rule: Rule, reading: Reading, sample: Sample) -> Event | None:
        now_s, value = sample.time_s, reading.value
        key = (rule.name, reading.subject)
        if value is None:
            return None
        track = self._tracks.setdefault(key, _Track(now_s))
        if now_s - track.known_s > self._gap_s:
            track.beyond_s = track.calm_s = None
        track.known_s = now_s
        if track.raised is None:
            track.beyond_s = (track.beyond_s or now_s) if rule.is_beyond(value) else None
            if track.beyond_s is None or now_s - track.beyond_s < rule.for_s:
                return None
            track.beyond_s = track.calm_s = None
            track.raised = Event(
                Change.RAISED, rule, reading.subject, sample.host, now_s, now_s, value, reading.text
            )
            return track.raised
        track.calm_s = (track.calm_s or now_s) if rule.is_calm(value) else None
        if track.calm_s is None or now_s - track.calm_s < rule.clear_for_s:
            return None
        return self._clear(track, sample, value, reading.text)

    def _clear(self, track: _Track, sample: Sample, value: float | None, text: str) -> Event | None:
        raised, track.raised = track.raised, None
        track.beyond_s = track.calm_s = None
        if raised is None:
            return None
        return Event(
            Change.CLEARED, raised.rule, raised.subject, sample.host, sample.time_s,
            raised.since_s, value, text,
        )  # fmt: skip

    def _clear_vanished(self, sample: Sample) -> list[Event]:
        """Clears what is about processes and GPUs that are gone, and forgets them."""
        presence = _Presence(sample)
        events = []
        for (name, subject), track in list(self._tracks.items()):
            reason = presence.why_gone(subject)
            track.num_missing = 0 if reason is None else track.num_missing + 1
            if reason is None or track.num_missing < _NUM_MISSING:
                continue
            event = self._clear(track, sample, None, reason)
            if event is not None:
                events.append(event)
            del self._tracks[name, subject]
        for _, meter in self._meters:
            for subject in [each for each in meter.memory if presence.why_gone(each) is not None]:
                if not any((rule.name, subject) in self._tracks for rule in self._rules):
                    del meter.memory[subject]
        return events


class _Presence:
    def __init__(self, sample: Sample) -> None:
        fields = {note.field for note in sample.notes if not note.devices}
        self._knows_gpus = "devices" not in fields
        self._knows_jobs = "jobs" not in fields
        self._gpus = {gpu_id(gpu) for gpu in sample.devices}
        self._jobs = {(job.pid, job.started_s) for job in sample.jobs}
        self._processes: dict[str, set[int] | None] = {
            gpu_id(gpu): None if gpu.processes is None else {each.pid for each in gpu.processes}
            for gpu in sample.devices
        }

    def why_gone(self, subject: Subject) -> str | None:
        """Why an incident of this subject is over; None: it is there, or nobody knows."""
        is_listed = subject.gpu is None or subject.gpu in self._gpus or not self._knows_gpus
        if subject.pid is None or subject.started_s is None:
            if not is_listed:
                return "the driver lists this GPU no more"
            pids = self._processes.get(subject.gpu or "")
            is_there = subject.pid is None or pids is None or subject.pid in pids
            return None if is_there else "its process ended"
        if not self._knows_jobs or (subject.pid, subject.started_s) in self._jobs:
            return None
        if any(pids and subject.pid in pids for pids in self._processes.values()):
            return "its process publishes nothing any more"
        return "its process ended"
