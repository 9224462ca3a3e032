"""What every document is made of: names and values that json.dumps takes."""

from __future__ import annotations

from typing import Any, TypeAlias

# What json.dumps takes.
Document: TypeAlias = dict[str, Any]
