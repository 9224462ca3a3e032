"""What a recording of a real GPU does at its begin and end, without a GPU."""

from __future__ import annotations

import pytest

from ullage.players.inside.entrances.recording import Recording


def test_a_recorded_function_that_calls_itself_is_recorded_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(Recording, "attach", lambda _: calls.append("attach"))
    monkeypatch.setattr(Recording, "detach", lambda _: calls.append("detach"))

    @Recording()
    def count(number: int) -> None:
        if number:
            count(number - 1)
        calls.append(str(number))

    count(2)
    assert calls == ["attach", "0", "1", "2", "detach"]
