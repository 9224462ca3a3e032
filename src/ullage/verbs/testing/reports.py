"""The traffic between the two processes of a test: pytest's reports and warnings as JSON and back,
and the report of a test whose process cannot give one any more.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any, Literal

import pytest

Json = dict[str, Any]


def warning_as_json(warning: warnings.WarningMessage) -> Json:
    """A warning in plain values."""
    category = warning.category
    return {
        "text": str(warning.message),
        "module": category.__module__,
        "category": category.__qualname__,
        "file": warning.filename,
        "line": warning.lineno,
    }


def warning_from_json(fields: Json) -> warnings.WarningMessage:
    """The same again; its category is UserWarning where this process does not know the class."""
    category = getattr(sys.modules.get(fields["module"]), fields["category"], None)
    if not (isinstance(category, type) and issubclass(category, Warning)):
        category = UserWarning
    return warnings.WarningMessage(fields["text"], category, fields["file"], fields["line"])


def report_from_json(config: pytest.Config, fields: Json) -> pytest.TestReport:
    """A report as the test's process made it; JSON has no tuples, which pytest's readers expect."""
    report: pytest.TestReport = config.hook.pytest_report_from_serializable(
        config=config, data=fields
    )
    report.location = tuple(report.location)  # type: ignore[assignment]
    report.user_properties = [tuple(pair) for pair in report.user_properties]  # type: ignore[misc]
    report.sections = [tuple(pair) for pair in report.sections]  # type: ignore[misc]
    if isinstance(fields["longrepr"], list):  # where and why a test was skipped
        report.longrepr = tuple(fields["longrepr"])
    return report


def broken_report(
    item: pytest.Item, when: Literal["setup", "call", "teardown"], why: str
) -> pytest.TestReport:
    """A failure that the test itself could not report."""
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome="failed",
        longrepr=why,
        when=when,
    )


def closing_report(item: pytest.Item) -> pytest.TestReport:
    """The end of a test whose own process did not get there; reporters wait for it."""
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome="passed",
        longrepr=None,
        when="teardown",
    )
