"""The type of all documents: names and values for json.dumps."""

from __future__ import annotations

from typing import Any, TypeAlias

# Values that json.dumps accepts.
Document: TypeAlias = dict[str, Any]
