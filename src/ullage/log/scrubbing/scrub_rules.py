"""The parts of shared texts that are removed: paths, names of users, addresses, secrets.

rules = ScrubRules(key=b"", names=frozenset({"ada"}))
rules.free_text("~ada/train.py asked ada@example.org")
"""

from __future__ import annotations

import hashlib
import re
from pathlib import PureWindowsPath

REMOVED = "removed"
USER = re.compile(r"(?:/home/|/Users/|[\\/]Users\\|(?:^|[\s\"'=])~)([A-Za-z_][\w.-]*)")
IS_PATH = re.compile(r"(?:/|~|[A-Za-z]:[\\/]|\\\\|file:)")
_PATH = re.compile(
    r"(?<![\w./\\:-])(?:file:/{0,2}|~)?(?:/[\w.@+~=%,-]+){2,}/?|(?<!\w)[A-Za-z]:\\[^\s\"'<>|:*?]+"
)
# What comes before the part of a path that says which code it is; the first that is found counts.
ROOTS = tuple(
    re.compile(pattern)
    for pattern in (
        r"^.*[/\\](?:site|dist)-packages[/\\]",
        r"^.*[/\\](?=python\d[\d.]*t?[/\\])",
        r"^.*?[/\\](?=(?:aten/src|torch/(?:csrc|nn|_\w+|utils|optim|autograd)|c10/\w+)[/\\])",
    )
)
_SECRETS = (
    re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s\"'<>]+"),
    re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}\b"),
    re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?![\w.])"),
    re.compile(r"(?<=[A-Z0-9_]{3}=)[^\s\"',;]+"),
    re.compile(r"(?i)(?<=host=)[^\s\"',;]+|(?<=hostname=)[^\s\"',;]+"),
)


class ScrubRules:
    """The rules for what is removed, and how paths are hashed."""

    def __init__(self, key: bytes, names: frozenset[str]) -> None:
        self._key = hashlib.blake2b(key).digest()
        self.num_names = len(names)
        longest_first = sorted(map(re.escape, names), key=lambda name: (-len(name), name))
        any_name = "|".join(longest_first)
        self._name = re.compile(rf"(?i)(?<![a-z0-9])(?:{any_name})(?![a-z0-9])") if names else None

    def without_names(self, text: str) -> str:
        """The text without the names of users and the words that were given."""
        return self._name.sub(REMOVED, text) if self._name else text

    def path(self, path: str) -> tuple[str, str]:
        """The change of a path, in one word, and the path that it becomes."""
        for root in ROOTS:
            if match := root.match(path):
                return "relative", self.without_names(path[match.end() :])
        whole = PureWindowsPath(path)  # knows both kinds of slashes
        letters = hashlib.blake2b(str(whole.parent).encode(), key=self._key, digest_size=4)
        return "hashed", f"{letters.hexdigest()}/{self.without_names(whole.name)}"

    def free_text(self, text: str) -> str:
        """The text without what is private in it."""
        text = _PATH.sub(lambda match: self.path(match[0])[1], text)
        for secret in _SECRETS:
            text = secret.sub(REMOVED, text)
        return self.without_names(text)
