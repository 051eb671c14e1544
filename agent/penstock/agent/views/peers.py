"""Peers, and pairs of engines, as text: how long a peer takes, what is wrong with it now, what differs between two engines. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from penstock.agent import limits
from penstock.agent.badness import badness
from penstock.agent.views import text
from penstock.agent.views.events import logged_words
from penstock.agent.views.orders import until_words
from penstock.agent.views.tables import Table
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1 import events_pb2 as events

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.proto.v1.snapshot_pb2 import PeerStatus

# From this condition on, requests fail, wait or are answered wrongly; below it, something is slow or taken care of.
_RED = badness(admin.PEER_CONDITION_FAILING)
_PAIR_COLOURS = {"no": "red", "differ": "red"}
_UNITS = ((1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"))


def condition_colour(condition: int) -> str:
    """Return the look of a ``PeerCondition``: red, yellow, or empty where nothing is wrong."""
    rank = badness(condition)
    return "" if not rank else "red" if rank >= _RED else "yellow"


def quantiles(item: admin.DurationWindow) -> str:
    """Return the quantiles of a window, p50/p99: ``54ms/1.2s``; ``-`` without a count."""
    if not item.count:
        return text.NONE
    return f"{text.span_of_time(item.p50_seconds)}/{text.span_of_time(item.p99_seconds)}"


def _seen_quantiles(item: admin.DurationWindow, least: admin.DurationWindow) -> str:
    """Return the same of transfers, which end when they are seen: ``≤1.0s/1.0s`` where they may have been much shorter."""
    return f"≤{quantiles(item)}" if _seen_late(item, least) else quantiles(item)


def _seen_late(item: admin.DurationWindow, least: admin.DurationWindow) -> bool:
    return (
        bool(item.count)
        and least.count == item.count
        and limits.is_loose(least.p50_seconds, item.p50_seconds)
    )


def mean_words(item: admin.PeerSummary) -> str:
    """Return the mean duration of its transfers: ``≤1.0s`` where they may have been much shorter."""
    mean, least = item.mean_duration_seconds, item.mean_duration_at_least_seconds
    late = item.HasField("mean_duration_at_least_seconds") and limits.is_loose(least, mean)
    return f"{'≤' if late else ''}{text.span_of_time(mean)}"


def condition_word(item: admin.PeerSummary) -> str:
    """Return what is wrong with a peer now; ``-`` from an agent that does not say."""
    return text.word(admin.PeerCondition, item.condition) if item.condition else text.NONE


def styled_condition(item: admin.PeerSummary) -> str:
    """Return the same, coloured."""
    word, look = condition_word(item), condition_colour(item.condition)
    return text.style(word, look) if look else word


def wrong_since(item: admin.PeerSummary, now: float) -> str:
    """Return for how long it has been wrong; ``-`` for not known, and where nothing is."""
    return text.ago_of(item.condition_since, now).removesuffix(" ago")


def peer_rows(items: Iterable[admin.PeerSummary], now: float) -> Table:
    """Return the table of peers, a row for each engine and peer; windows are p50/p99.

    Without the wide columns it fits 120 characters.
    """
    return Table(
        ("ENGINE", "PEER", "ADDRESS", "NOW", "SINCE", "WAIT-1M",
         "WHY", "STATUS", "OK", "FAILED", "WAIT-15M", "WAIT-HOUR", "TRANSFER-1M", "TRANSFER-15M", "TRANSFER-HOUR", "MEAN",
         "IN-FLIGHT", "OLDEST", "DEFERRED", "LONGEST", "FAILURES", "LAST-FAILURE", "PEER-ENGINE-ID"),
        [
            (
                text.engine(item.key),
                peer_name(item) or text.NONE,
                item.peer.address,
                styled_condition(item),
                wrong_since(item, now),
                quantiles(item.waits.last_minute),
                item.condition_reason or text.NONE,
                peer_status(item),
                str(item.transfers_ok),
                str(failed_attempts(item)),
                quantiles(item.waits.last_15_minutes),
                quantiles(item.waits.hour_before),
                _seen_quantiles(item.transfers.last_minute, item.transfers_at_least.last_minute),
                _seen_quantiles(item.transfers.last_15_minutes, item.transfers_at_least.last_15_minutes),
                quantiles(item.transfers.hour_before),
                mean_words(item) if item.transfers_ok else text.NONE,
                str(item.in_flight),
                text.ago_of(item.oldest_in_flight, now),
                str(item.deferred),
                text.ago_of(item.oldest_deferred, now),
                failure_words(item),
                text.ago_of(item.last_failure, now),
                item.peer.engine_id or text.NONE,
            )
            for item in items
        ],
        wide=17,
    )  # fmt: skip


def peer_name(item: admin.PeerSummary) -> str:
    """Return the name of the engine at a peer's address; empty if it is not known."""
    return text.engine(item.engine) if item.HasField("engine") else ""


def peer_words(item: admin.PeerSummary) -> str:
    """Return a peer's address, behind the name of the engine there if it is known."""
    name = peer_name(item)
    return f"{name} ({item.peer.address})" if name else item.peer.address


def failed_attempts(item: admin.PeerSummary) -> int:
    """Return the failures of a peer; a failed handshake counts no transfer."""
    return max(item.transfers_failed, sum(entry.count for entry in item.failures))


def failure_words(item: admin.PeerSummary) -> str:
    """Return a peer's failures by mode and error type."""
    return (
        ", ".join(
            f"{text.word(common.FailureMode, entry.mode)}/{text.word(common.ErrorType, entry.error_type)} {entry.count}"
            for entry in item.failures
        )
        or text.NONE
    )


def peer_status(item: admin.PeerSummary) -> str:
    """Return a peer's status: connected or not, known to vLLM as invalid, in quarantine."""
    if not item.HasField("status"):
        return text.NONE
    parts = ["connected" if item.status.connected else "not connected"]
    if item.status.upstream_invalid:
        parts.append("invalid to vllm")
    if item.status.quarantine > events.QUARANTINE_STATE_CLOSED:
        parts.append(quarantine_words(item.status))
    return ", ".join(parts)


def quarantine_words(status: PeerStatus) -> str:
    """Return the quarantine state of a peer."""
    return text.quarantine_state(status.quarantine)


def peer_description(
    found: list[admin.PeerSummary],
    quarantines: list[admin.Quarantine],
    failures: list[admin.LoggedEvent],
    now: float,
) -> Iterator[str]:
    """Yield the lines of a description; *found* is of one peer, and not empty."""
    yield f"Peer: {peer_words(found[0])}"
    ordered = defaultdict(list)
    for order in quarantines:
        ordered[order.key.server, order.key.engine].append(order)
    for item in found:
        yield f"Engine {text.engine(item.key)}:"
        yield from (f"{text.INDENT}{line}" for line in _as_seen(item, now))
        # Once for each engine, though an answer may name one twice.
        for order in ordered.pop((item.key.server, item.key.engine), ()):
            yield f"{text.INDENT}{_quarantine(order, now)}"
    if failures:
        yield "Last failures:"
        for entry in failures:
            when = text.ago(entry.event.time_unix_nano, now)
            request = entry.event.request_id or text.NONE
            yield f"{text.INDENT}{when}, engine {text.engine(entry.key)}, request {request}: {logged_words(entry)}"


def _as_seen(item: admin.PeerSummary, now: float) -> Iterator[str]:
    retired = " (retired)" if item.retired else ""
    yield f"Status: {peer_status(item)}{retired}"
    why = f": {item.condition_reason}" if item.condition_reason else ""
    lasts = f" for {wrong_since(item, now)}" if item.HasField("condition_since") else ""
    yield f"Now: {styled_condition(item)}{lasts}{why}"
    if item.peer.engine_id:
        yield f"Engine id: {item.peer.engine_id}"
    mean = f", {mean_words(item)} on average" if item.transfers_ok else ""
    yield f"Transfers: {item.transfers_ok} ok{mean}, {failed_attempts(item)} failed"
    yield from _windows("Waits", item.waits)
    yield from _windows("Transfer times", item.transfers)
    yield from _seen_late_words(item)
    if item.failures:
        last = f", last {text.ago_of(item.last_failure, now)}" if item.HasField("last_failure") else ""
        yield f"Failures: {failure_words(item)}{last}"
    if item.in_flight:
        yield f"In flight: {item.in_flight}, oldest since {text.ago_of(item.oldest_in_flight, now)}"
    if item.deferred:
        yield f"Deferred: {item.deferred}, oldest since {text.ago_of(item.oldest_deferred, now)}"


def _windows(what: str, item: admin.PeerWindows) -> Iterator[str]:
    """Yield the quantiles of the windows, p50/p99; nothing if no window has any."""
    if any(each.count for each in (item.last_minute, item.last_15_minutes, item.hour_before)):
        yield (
            f"{what} (p50/p99): {quantiles(item.last_minute)} in the last minute, "
            f"{quantiles(item.last_15_minutes)} in the last 15, {quantiles(item.hour_before)} in the hour before"
        )


def _seen_late_words(item: admin.PeerSummary) -> Iterator[str]:
    """Yield a line if the engine looks so seldom that its transfers may have been much shorter."""
    for window, least, when in (
        (item.transfers.last_minute, item.transfers_at_least.last_minute, "in the last minute"),
        (item.transfers.last_15_minutes, item.transfers_at_least.last_15_minutes, "in the last 15"),
    ):
        if _seen_late(window, least):
            span = f"{text.span_of_time(least.p50_seconds)} to {text.span_of_time(window.p50_seconds)}"
            yield f"Seen late: a transfer ends when its engine looks; the median {when} is {span}"
            return


def _quarantine(order: admin.Quarantine, now: float) -> str:
    parts = [f"Quarantine: {text.quarantine_state(order.state)}", f"until: {until_words(order, now)}"]
    if order.reason:
        parts.append(text.one_line(order.reason))
    if order.author:
        parts.append(f"by {order.author}")
    return ", ".join(parts)


def pair_rows(items: Iterable[admin.Pair]) -> Table:
    """Return the table of pairs, a row for each."""
    return Table(
        ("ENGINE", "PEER", "COMPATIBLE", "GEOMETRY", "WEIGHTS", "REVISION", "BYTES/S", "USUAL", "TRANSPORT",
         "ADDRESS", "SIBLINGS", "SIZE", "WHY"),
        [
            (
                text.engine(item.key),
                other_side(item),
                _styled_word(text.word(admin.PairCompatibility, item.compatible)),
                _both_sides(item.geometry, item.peer_geometry),
                _styled_word(text.word(admin.PairWeights, item.weights)),
                _both_sides(item.revision, item.peer_revision),
                _speed_now(item.speed),
                _usual_speed(item.speed),
                item.transport or text.NONE,
                item.peer.address or text.NONE,
                f"{item.speed.siblings_ratio:.0%}" if item.speed.HasField("siblings_ratio") else text.NONE,
                item.speed.size_class or text.NONE,
                pair_reason(item) or text.NONE,
            )
            for item in items
        ],
        wide=4,
    )  # fmt: skip


def other_side(item: admin.Pair) -> str:
    """Return the other engine; its address where the engine is not known."""
    return text.engine(item.peer_key) if item.HasField("peer_key") else item.peer.address


def pair_reason(item: admin.Pair) -> str:
    """Return the reason of the verdict and every difference."""
    differences = [f"{each.fact} {each.value}≠{each.peer_value}" for each in item.differences]
    return "; ".join([item.reason, *(each for each in differences if each not in item.reason)])


def speed_words(bytes_per_second: float) -> str:
    """Return bytes/s: ``49 GB/s``, ``380 kB/s``."""
    for size, unit in _UNITS:
        if bytes_per_second >= size:
            return f"{bytes_per_second / size:.3g} {unit}"
    return f"{bytes_per_second:.0f} B/s"


def _styled_word(word: str) -> str:
    return text.style(word, _PAIR_COLOURS[word]) if word in _PAIR_COLOURS else word


def _both_sides(own: str, peer: str) -> str:
    """Return what both sides have: once if it is the same."""
    if own == peer or not peer:
        return own or text.NONE
    return f"{own or text.NONE} ≠ {peer}"


def _speed_now(item: admin.PairSpeed) -> str:
    if not item.count:
        return text.NONE
    from penstock.agent.pairs import slowness  # noqa: PLC0415  (a command that prints no pair does without them)

    word = speed_words(item.bytes_per_second)
    most = item.bytes_per_second_at_most
    if item.HasField("bytes_per_second_at_most") and limits.is_loose(item.bytes_per_second, most):
        # Seen late: it may have been much faster.
        word = f"≥{word}"
    return text.style(word, "yellow") if slowness(item) else word


def _usual_speed(item: admin.PairSpeed) -> str:
    if not item.usual_count:
        return text.NONE
    ratio = f" ({item.usual_ratio:.0%})" if item.HasField("usual_ratio") else ""
    return f"{speed_words(item.usual_bytes_per_second)}{ratio}"
