"""Which of several free blocks of one size the allocator takes: `enum tie` of csrc/rules.h."""

from __future__ import annotations

from typing import Final

BY_ADDRESS, BY_AGE = 0, 1  # the lowest, or that of the oldest segment
# Source: pytorch/pytorch#183591 (May 2026); recordings up to 2.9.1, and 2.15 on the phantom, agree.
FIRST_BY_AGE: Final = (2, 13)
"""The first torch that chooses by age."""
