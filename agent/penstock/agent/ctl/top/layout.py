"""Lays out the screen of ``top`` for any terminal size. Pure."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from penstock.agent.views import text
from penstock.agent.views.peers import condition_colour

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.agent.ctl.top.view import AgentState, EngineRow, History, PeerRow

T = TypeVar("T")

# Styles of a piece of a line.
PLAIN, HEAD, BAD, WARN, DIM = "", "head", "bad", "warn", "dim"
_LOOKS = {"red": BAD, "yellow": WARN, "": PLAIN}
_GAP = "  "
_LEAST_ROWS = 3
# Seconds since the last answer: the screen says its age, for a poll takes at most two.
_OLD_SCREEN_SECONDS = 5.0


class Piece(NamedTuple):
    """Text and its style."""

    text: str
    style: str = PLAIN


Line = list[Piece]


class Column(NamedTuple):
    """A column; the one with the highest *spare* is dropped first if they do not fit."""

    title: str
    spare: int
    right: bool = False


_ENGINES = (
    Column("ENGINE", 0), Column("ROLE", 5), Column("STATUS", 0), Column("KV-ACTION", 1), Column("TR/S", 2, True),
    Column("BYTES/S", 4, True), Column("FAIL/S", 1, True), Column("FAILED", 6, True), Column("IN-FLIGHT", 2, True),
    Column("RUNNING", 8, True), Column("WAITING", 7, True), Column("DEFERRED", 1, True), Column("OLDEST", 3, True),
)  # fmt: skip
_PEERS = (
    Column("PEER", 0), Column("ENGINE", 1), Column("NOW", 0), Column("STATUS", 5), Column("TR/S", 5, True),
    Column("FAIL/S", 2, True), Column("FAILED", 4, True), Column("WAIT-1M", 1, True), Column("WAIT-HOUR", 3, True),
    Column("TRANSFER-1M", 9, True), Column("IN-FLIGHT", 7, True), Column("OLDEST", 2, True), Column("LAST-FAILURE", 8, True),
    Column("FAILURES", 6),
)  # fmt: skip


def screen(history: History, sort: str, scroll: int, width: int, height: int, now: float) -> list[Line]:
    """Return at most *height* lines of at most *width* characters.

    Args:
        history: the samples.
        sort: one of ``SORTS``.
        scroll: rows skipped, of peers and of engines if these do not fit.
        now: seconds since the epoch.

    """
    width, height = max(width, 1), max(height, 1)
    sample = history.last
    lines = _heading(history, sample, now)
    footer: Line = [Piece(f"q quit   s sort: {sort}   up/down scroll   rates over 10s", DIM)]
    if sample is not None:
        engines, peers = history.engines(sort), history.peers(sort)
        # Each table has a caption and a title; one line is the footer.
        room = max(0, height - len(lines) - 5)
        engine_rows = min(len(engines), max(_LEAST_ROWS, room // 2, room - len(peers)))
        lines += _table(_ENGINES, *_page(engines, scroll, engine_rows, "engines"), _engine_cells, width, now)
        shown, caption = _page(peers, scroll, max(room - engine_rows, 0), "peers")
        lines += _table(_PEERS, shown, _of_all(caption, sample), _peer_cells, width, now)
    body = lines[: height - 1] if height > 1 else lines[:1]
    return [_cut(line, width) for line in (*body, *([footer] if height > 1 else []))]


def as_text(lines: Sequence[Line]) -> str:
    """Return lines without their styles."""
    return "\n".join("".join(piece.text for piece in line).rstrip() for line in lines)


def _heading(history: History, sample: AgentState | None, now: float) -> list[Line]:
    clock = time.strftime("%H:%M:%S", time.localtime(now))
    if sample is None or sample.status is None:
        waiting = history.error or "waiting for the agent"
        return [[Piece(f"penstock  {clock}", HEAD)], [Piece(waiting, BAD if history.error else DIM)]]
    connected = sum(item.connected for item in sample.engines)
    expected = max(sample.status.engines_expected, len(sample.engines))
    rows = history.engines("name")
    awaited = expected - sum(row.stopped for row in rows)
    deferred = sum(row.deferred for row in rows)
    first: Line = [
        Piece(f"penstock {sample.status.version}  {clock}  ", HEAD),
        Piece(f"{connected} of {expected} engines", PLAIN if connected >= awaited else BAD),
        Piece(f"  {_rate(_sum(row.transfers for row in rows))} transfers/s"),
        Piece(f"  {_bytes(_sum(row.bytes for row in rows))}/s"),
    ]
    failures = _sum(row.failures for row in rows)
    second: Line = [
        Piece(f"{_rate(failures)} failures/s", BAD if failures else PLAIN),
        Piece(f"  {sum(row.in_flight for row in rows)} in flight"),
        Piece(f"  {deferred} deferred", WARN if deferred else PLAIN),
        Piece(f"  {sum(item.counters.requests_failed for item in sample.engines)} requests failed in total"),
    ]
    return [first, second, *([trouble] if (trouble := _trouble(history, sample, now)) else [])]


def _trouble(history: History, sample: AgentState, now: float) -> Line:
    """Return the most important problem; empty for none."""
    status = sample.status
    if history.error:
        away = text.age(now - history.error_since)
        return [Piece(f"no answer for {away}, data below is old: {text.one_line(history.error)}", BAD)]
    if now - sample.now > _OLD_SCREEN_SECONDS:
        return [Piece(f"the agent has not answered for {text.age(now - sample.now)}", WARN)]
    if status is not None and status.degraded:
        return [Piece(f"agent: {text.one_line(status.degraded)}", BAD)]
    late = sum(1 for item in sample.engines if item.connected and not item.in_sync)
    if late:
        return [Piece(f"policy: not in force in {text.count(late, 'engine')}; run agentctl doctor", WARN)]
    if status is not None and status.otlp_error:
        return [Piece(f"traces: {text.one_line(status.otlp_error)}", WARN)]
    return []


def _engine_cells(row: EngineRow, now: float) -> list[Piece]:
    if row.in_sync or not row.connected:
        policy = Piece(row.action)
    else:
        policy = Piece(row.action if row.paused else f"{row.action} (late)", WARN)
    return [
        Piece(row.name),
        Piece(row.role),
        _status(row),
        policy,
        Piece(_rate(row.transfers)),
        Piece(_bytes(row.bytes)),
        Piece(_rate(row.failures), BAD if row.failures else PLAIN),
        Piece(str(row.failed)),
        Piece(str(row.in_flight)),
        Piece(_number(row.running)),
        Piece(_number(row.waiting)),
        Piece(str(row.deferred), WARN if row.deferred else PLAIN),
        Piece(_age(row.oldest_unix_nano, now)),
    ]


def _status(row: EngineRow) -> Piece:
    if row.stopped:
        return Piece("stopped", DIM)
    if not row.connected:
        return Piece("disconnected", BAD)
    if row.cores > 1:
        return Piece(f"{row.cores} share a name", BAD)
    return Piece("paused", WARN) if row.paused else Piece("connected")


def _peer_cells(row: PeerRow, now: float) -> list[Piece]:
    return [
        Piece(row.name),
        Piece(row.engine),
        Piece(row.now, _LOOKS[condition_colour(row.condition)]),
        Piece(row.state, BAD if row.trouble else PLAIN),
        Piece(_rate(row.transfers)),
        Piece(_rate(row.failures), BAD if row.failures else PLAIN),
        Piece(str(row.failed)),
        Piece(row.wait_minute),
        Piece(row.wait_hour),
        Piece(row.transfer_minute),
        Piece(str(row.in_flight)),
        Piece(_age(row.oldest_unix_nano, now)),
        Piece(_age(row.last_failure_unix_nano, now)),
        Piece(row.cause or text.NONE),
    ]


def _page(rows: Sequence[T], scroll: int, count: int, things: str) -> tuple[Sequence[T], str]:
    """Return *count* rows from *scroll* on, or the last ones, and a caption if rows are hidden."""
    if count >= len(rows):
        return rows, ""
    begin = max(0, min(scroll, len(rows) - count))
    which = f"{begin + 1} to {begin + count} of {len(rows)}" if count else f"{len(rows)}"
    return rows[begin : begin + count], f"{which} {things}"


def _of_all(caption: str, sample: AgentState) -> str:
    """Return the caption of peers, and of how many these are the worst."""
    if sample.total_peers <= len(sample.peers):
        return caption
    return f"{caption or f'{len(sample.peers)} peers'}, the worst of {sample.total_peers}"


def _table(
    columns: Sequence[Column],
    rows: Sequence[T],
    caption: str,
    cells: Callable[[T, float], list[Piece]],
    width: int,
    now: float,
) -> list[Line]:
    """Return caption, title and rows, in the columns that fit."""
    shown = [[Piece(text.printable(cell.text), cell.style) for cell in cells(row, now)] for row in rows]
    lines: list[Line] = [[Piece(caption, DIM)]]
    kept = _fitting(columns, shown, width)
    widths = [_width(columns[index], index, shown) for index in kept]
    titles = [_aligned(columns[i].title, w, columns[i]) for i, w in zip(kept, widths, strict=True)]
    lines.append([Piece(_GAP.join(titles), HEAD)])
    for row in shown:
        line: Line = []
        for index, column_width in zip(kept, widths, strict=True):
            line.append(Piece(_aligned(row[index].text, column_width, columns[index]), row[index].style))
            line.append(Piece(_GAP))
        lines.append(line[:-1])
    return lines


def _fitting(columns: Sequence[Column], shown: Sequence[list[Piece]], width: int) -> list[int]:
    """Return the indices of the columns that fit."""
    kept = list(range(len(columns)))

    def total() -> int:
        return sum(_width(columns[index], index, shown) for index in kept) + len(_GAP) * (len(kept) - 1)

    while len(kept) > 1 and total() > width:
        kept.remove(max(kept, key=lambda index: (columns[index].spare, index)))
    return kept


def _width(column: Column, index: int, shown: Sequence[list[Piece]]) -> int:
    return max(len(column.title), *(len(row[index].text) for row in shown)) if shown else len(column.title)


def _aligned(cell: str, width: int, column: Column) -> str:
    return cell.rjust(width) if column.right else cell.ljust(width)


def _cut(line: Line, width: int) -> Line:
    cut: Line = []
    left = width
    for piece in line:
        if left <= 0:
            break
        said = text.printable(piece.text)
        cut.append(Piece(said[:left], piece.style))
        left -= len(said)
    return cut


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _number(value: int | None) -> str:
    return text.NONE if value is None else str(value)


def _rate(value: float | None) -> str:
    if value is None:
        return text.NONE
    if not value:
        return "0"
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"  # noqa: PLR2004


def _bytes(value: float | None) -> str:
    if value is None:
        return text.NONE
    for limit, unit in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if value >= limit:
            return f"{value / limit:.1f} {unit}"
    return f"{value:.0f} B"


def _age(unix_nano: int, now: float) -> str:
    return text.age(now - unix_nano / 1e9) if unix_nano else text.NONE
