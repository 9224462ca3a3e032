"""Users of a function who run at once, each in a thread, and take turns in a fixed order.

Threads that run freely take memory in another order each time. Here one runs at a time, until a
module's forward ends or an item of a stream is out; then the next goes on. So every user is in the
middle of a request at once, two runs take the same memory, and what a server with a thread for each
request could hold is held.

    users = Users(8, requests, answer)
    users.run()                     # raises what answer(request) raised

A user who waits for something else, such as a lock that another one holds, is passed over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ullage.players.inside.requests.requests import Request, in_parts

# A user who has not run between so many looks, nor come to the end of the turn, waits for another:
# where no thread of the process could work for it, soon; else in two seconds.
_LOOKS, _MOST_LOOKS = 5, 200
_LOOK_S = 0.01


class _User:
    """One of them: `turn` is released when it may go on; `is_ready` while it waits for that."""

    def __init__(self, users: Users) -> None:
        self.users = users
        self.turn = threading.Semaphore(0)
        self.is_ready = True
        self.thread = threading.Thread(target=users.live, args=(self,), daemon=True)


class _Own(threading.local):
    user: _User | None = None


_own = _Own()


def pass_on() -> None:
    """The thread's user, if it is one's, lets the next go on, and waits for the next turn."""
    user = _own.user
    if user is not None:
        user.users.pass_on(user)


class Users:
    """A number of users who share the requests of a file.

    Args:
        number: of users.
        requests: taken in their order by whoever is free.
        answer: called with each.
    """

    def __init__(
        self, number: int, requests: Sequence[Request], answer: Callable[[Request], None]
    ) -> None:
        self._answer = answer
        self._parts = in_parts(requests, number)
        self._part: Iterator[Request] = iter(())
        self._lock = threading.Lock()
        self._all = [_User(self) for _ in range(number)]
        self._active: _User | None = None
        self._num_turns = self._num_done = 0
        self._is_over = threading.Event()
        self._error: BaseException | None = None

    def run(self) -> None:
        """Answers everything.

        Raises:
            BaseException: what the first answer that failed raised.
        """
        for user in self._all:
            user.thread.start()
        with self._lock:
            self._begin_part()
        self._watch()
        if self._error is not None:
            raise self._error

    def live(self, user: _User) -> None:
        """Answers requests in the thread of a user."""
        _own.user = user
        user.turn.acquire()
        while not self._is_over.is_set():
            request = next(self._part, None)
            if request is None:
                self._wait_for_part(user)
                continue
            try:
                self._answer(request)
            except BaseException as error:  # the main thread raises it
                self._error = self._error or error
                self._is_over.set()
                return

    def pass_on(self, user: _User) -> None:
        """The end of a user's turn; comes back at the beginning of the next."""
        with self._lock:
            user.is_ready = True
            # Who was passed over has no turn to give.
            if self._active in {user, None}:
                self._activate_after(user)
        user.turn.acquire()

    def _wait_for_part(self, user: _User) -> None:
        """The part has no request left: the last user to come here begins the next."""
        with self._lock:
            self._num_done += 1
            if self._num_done == len(self._all):
                self._begin_part()
            elif self._active in {user, None}:
                self._activate_after(user)
        user.turn.acquire()

    def _begin_part(self) -> None:
        part = next(self._parts, None)
        if part is None:
            self._is_over.set()
            return
        self._part, self._num_done = iter(part), 0
        for user in self._all:
            user.is_ready = True
        self._activate_after(self._all[-1])

    def _activate_after(self, user: _User) -> None:
        """Gives the turn to the next who is ready; to nobody where all wait for something else."""
        place = self._all.index(user) + 1
        ready = (caller for caller in (*self._all[place:], *self._all[:place]) if caller.is_ready)
        self._active = next(ready, None)
        self._num_turns += 1
        if self._active is not None:
            self._active.is_ready = False
            self._active.turn.release()

    def _watch(self) -> None:
        """Until all is over: passes over who waits for something else."""
        known, num_same = (0, ""), 0
        while not self._is_over.wait(_LOOK_S):
            active, number = self._active, self._num_turns
            if active is None:
                continue
            state = number, _find_sleep(active.thread)
            num_same = num_same + 1 if state == known and state[1] else 0
            known = state
            if num_same < _LOOKS or (num_same < _MOST_LOOKS and _is_anyone_running()):
                continue
            with self._lock:
                if self._num_turns == number:
                    self._activate_after(active)


def _find_sleep(thread: threading.Thread) -> str:
    """How long a thread that the kernel has wait for something has run; empty for one that runs.

    To wait for Python's lock, as one does while it is looked at, is not a sleep: it runs in
    between.
    """
    directory = Path(f"/proc/self/task/{thread.native_id}")
    try:
        ran = (directory / "schedstat").read_text(encoding="utf-8").split()[0]
    except OSError:
        return ""
    return ran if _state(directory) == "S" else ""


def _is_anyone_running() -> bool:
    """True if another thread runs, or would if it had a processor."""
    own = str(threading.get_native_id())
    return any(
        _state(directory) == "R"
        for directory in Path("/proc/self/task").iterdir()
        if directory.name != own
    )


def _state(directory: Path) -> str:
    """The kernel's state of a thread: R it runs, S it sleeps; empty where it has ended."""
    try:
        status = (directory / "stat").read_text(encoding="utf-8")
    except OSError:
        return ""
    return status.rpartition(")")[2].split()[0]
