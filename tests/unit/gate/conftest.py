"""What the tests of a configuration share: that a wrong one is refused as people need it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ullage.ground.errors import SpecError
from ullage.verbs.check.gate.config import load_configuration


@pytest.fixture
def refuse() -> Callable[[Path, str, int, str], None]:
    """`refuse(directory, text, line, message)`: reading it names file, line, and what to do."""

    def check(directory: Path, text: str, line: int, message: str) -> None:
        (directory / "ullage.toml").write_text(text, encoding="utf-8")
        with pytest.raises(SpecError) as raised:
            load_configuration(directory)
        assert str(raised.value).startswith(f"ullage.toml:{line}: "), raised.value
        assert message in str(raised.value)

    return check
