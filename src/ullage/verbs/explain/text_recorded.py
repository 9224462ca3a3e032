"""Parts of a snapshot's report that need a recorded run: dead blocks, copies, a token's memory."""

from __future__ import annotations

from collections.abc import Iterator

from ullage.answers import block_kinds as b
from ullage.explain.owners.dead_weight import DeadWeight
from ullage.explain.rules.case import MIN_BYTES, Case, category_of
from ullage.explain.tokens import TokenGrowth
from ullage.explain.transfers import Transfers
from ullage.ground.units import format_bytes
from ullage.verbs.views.palette import CATEGORY_LOOKS

_MAX_DEAD = 6
_TOKENS = (8_192, 131_072)


def recorded_parts(case: Case) -> Iterator[b.Block]:
    """The dead blocks at the peak, the copies of each step, the memory of a token: what counts."""
    recorded = case.device.recorded
    if recorded is None:
        return
    dead = recorded.dead
    if dead is not None and case.is_worth(dead.size_bytes):
        yield from _dead_parts(case, dead)
    if recorded.transfers:
        yield b.Title("Copies of each step after the first")
        yield from (b.Note(_transfer_text(transfer), indent=2) for transfer in recorded.transfers)
    if recorded.tokens is not None:
        yield b.Title("Cache of a generating model")
        yield from (b.Note(line, indent=2, hang=2) for line in _token_lines(recorded.tokens))


def _dead_parts(case: Case, dead: DeadWeight) -> Iterator[b.Block]:
    yield b.Title("Dead at the peak: used for the last time before it")
    rows: b.Rows = []
    blocks = dead.blocks[case.size_bytes[dead.blocks] >= MIN_BYTES]
    for block in blocks[:_MAX_DEAD].tolist():
        used = case.device.course.describe(int(dead.last_use[block]) - 1)
        rows.append(
            [
                format_bytes(int(case.size_bytes[block])),
                CATEGORY_LOOKS[category_of(case, block)].label,
                used or "before the steps",
                case.site(block),
            ]
        )
    rest = blocks[_MAX_DEAD:]
    if len(rest):
        size = format_bytes(int(case.size_bytes[rest].sum()))
        rows.append([size, "", "", f"{len(rest):,} more blocks"])
    yield b.Table((b.RIGHT, b.LEFT, b.LEFT, b.REST), rows, ("bytes", "owner", "last used", "where"))


def _transfer_text(transfers: Transfers) -> str:
    where = "to the device" if transfers.is_to_device else "to the host"
    memory = "pinned" if transfers.is_pinned else "pageable"
    wait = ", waited for" if transfers.is_waited_for else ""
    stream = ", on a stream of its own" if transfers.is_beside else ""
    count = transfers.num_copies / transfers.num_steps
    copies = f"{count:.3g} cop{'y' if count == 1 else 'ies'}"
    return f"{format_bytes(transfers.step_bytes)} {where} in {copies}, {memory}{wait}{stream}"


def _token_lines(tokens: TokenGrowth) -> Iterator[str]:
    yield (
        f"{format_bytes(tokens.token_bytes)} a token, all sequences together; "
        f"{format_bytes(tokens.cache_bytes)} with {tokens.num_tokens:,} tokens at the end"
    )
    ahead = [count for count in _TOKENS if count > tokens.num_tokens]
    if ahead:
        yield "at this rate " + ", ".join(
            f"{format_bytes(tokens.bytes_at(count))} with {count:,}" for count in ahead
        )
