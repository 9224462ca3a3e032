"""What the command line says beside its answer."""

from __future__ import annotations

import pytest

from ullage.verbs.command_line.output import Output


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("step 3 allocated 3221225472", "step 3, 3.0 GiB allocated"),
        ("1 of 12 runs", "1 of 12 runs"),
    ],
)
def test_progress_on_a_terminal_is_said_in_words(
    line: str, shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Output().progress() as on_progress:
        assert on_progress is not None
        on_progress(line)
    assert shown in capsys.readouterr().err
