"""A plugin of vLLM that writes down each turn of its scheduler, by a clock that all processes of a
machine share.

vLLM loads it in each of its processes (entry point vllm.general_plugins, see record.py). Rows of
STEPLOG_FOLDER/steps-PID.jsonl, moments in seconds of time.perf_counter:

    ["add", moment, request, prompt tokens]
    ["schedule", begin, end, tokens, requests, prompts, running, waiting, preempted, cache in use]
    ["update", begin, end, tokens]

A step costs a few microseconds more by it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

__all__ = ["install"]

_ROWS: Final = 400


class _Log:
    def __init__(self, folder: str) -> None:
        self._path = Path(folder, f"steps-{os.getpid()}.jsonl")
        self._rows: list[list[Any]] = []

    def write(self, row: list[Any], *, is_idle: bool = False) -> None:
        """Keeps a row, and writes them all where there are many or nothing is to do."""
        self._rows.append(row)
        if len(self._rows) >= _ROWS or is_idle:
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(each) + "\n" for each in self._rows)
            self._rows.clear()


def install() -> None:
    """Wraps three methods of vLLM's scheduler."""
    folder = os.environ.get("STEPLOG_FOLDER")
    if not folder:
        return
    from vllm.v1.core.sched.scheduler import Scheduler

    log = _Log(folder)
    Scheduler.add_request = _timed_add(Scheduler.add_request, log)
    Scheduler.schedule = _timed_schedule(Scheduler.schedule, log)
    Scheduler.update_from_output = _timed_update(Scheduler.update_from_output, log)


def _timed_add(theirs: Callable[..., Any], log: _Log) -> Callable[..., Any]:
    def add_request(self: Any, request: Any, *others: Any, **named: Any) -> Any:
        tokens = len(request.prompt_token_ids or ())
        log.write(["add", time.perf_counter(), request.request_id, tokens])
        return theirs(self, request, *others, **named)

    return add_request


def _timed_schedule(theirs: Callable[..., Any], log: _Log) -> Callable[..., Any]:
    def schedule(self: Any, *others: Any, **named: Any) -> Any:
        begin_s = time.perf_counter()
        step = theirs(self, *others, **named)
        end_s = time.perf_counter()
        if step.total_num_scheduled_tokens:
            sizes = step.num_scheduled_tokens.values()
            log.write([
                "schedule", begin_s, end_s, step.total_num_scheduled_tokens, len(sizes),
                sum(size > 1 for size in sizes), len(self.running), len(self.waiting),
                len(step.preempted_req_ids or ()), round(self.kv_cache_manager.usage, 5),
            ])  # fmt: skip
        return step

    return schedule


def _timed_update(theirs: Callable[..., Any], log: _Log) -> Callable[..., Any]:
    def update_from_output(self: Any, step: Any, *others: Any, **named: Any) -> Any:
        begin_s = time.perf_counter()
        outputs = theirs(self, step, *others, **named)
        row = ["update", begin_s, time.perf_counter(), step.total_num_scheduled_tokens]
        log.write(row, is_idle=not self.requests)
        return outputs

    return update_from_output
