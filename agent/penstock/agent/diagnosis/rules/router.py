"""Decode engines that get requests without transfer parameters: the router does not send them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent import limits
from penstock.agent.diagnosis.facts import RECOMPUTED_SECONDS, Confidence, Evidence, FoundCause, sane, words
from penstock.proto.names import NANOS
from penstock.proto.v1 import common_pb2 as common

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.agent.diagnosis.facts import Attribution, Closed, Facts, Window
    from penstock.agent.model import EngineKey
    from penstock.proto.v1 import admin_pb2 as admin

# What the agent calls it where the engine counts such requests.
_STALL: Final = "no_transfer_params"


class _Share(NamedTuple):
    """Requests of an engine that were closed, and how many of them came without transfer parameters."""

    number: int
    bare: int

    @property
    def part(self) -> float:
        return self.bare / self.number if self.number else 0.0


def router_causes(facts: Facts, _shares: Attribution) -> Iterator[FoundCause]:
    """Yield decode engines whose requests name no prefill."""
    for engine in facts.engines:
        key = words.key_of(engine.key)
        decodes = engine.role == common.ROLE_DECODE and not engine.role_guessed and engine.facts.kv_connector
        rows = sorted(_requests(facts.present, key), key=lambda each: each.time)
        first = next((number for number, each in enumerate(rows) if _is_bare(each)), len(rows))
        stall = next((each for each in engine.stalls if each.kind == _STALL), None)
        if decodes and _is_fault(_share(rows[first:]), _before(facts, key, rows, first)):
            yield _told_by_requests(facts, key, rows, first)
        elif stall is not None:
            yield replace(_told_by_engine(facts, key, stall), since=sane(facts, stall.since.ToNanoseconds()))


def _is_fault(since: _Share, before: _Share) -> bool:
    """Return whether the requests since the first bare one are too many without parameters."""
    if since.bare < limits.BARE_COUNT:
        return False
    if since.part >= limits.BARE_SHARE:
        return True
    return before.number >= limits.BARE_COUNT and since.part >= max(
        limits.BARE_PART, limits.BARE_PART_TIMES * before.part
    )


def _before(facts: Facts, key: EngineKey, rows: list[Closed], first: int) -> _Share:
    """Return what was before the first bare one: in the time before, and in the window if that many say something."""
    share, since = _share(_requests(facts.before, key)), _share(rows[first:])
    # So many as would have held some, had it been the same before.
    telling = first * since.part >= limits.BARE_COUNT
    return _Share(share.number + first, share.bare) if telling else share


def _told_by_requests(facts: Facts, key: EngineKey, rows: list[Closed], first: int) -> FoundCause:
    since, before = _share(rows[first:]), _share(_requests(facts.before, key))
    until = _end(facts, rows)
    of = "" if since.part >= limits.BARE_SHARE else f" ({100 * since.part:.0f} %)"
    lately = "" if until else f" of the last {words.span((facts.now - rows[first].time) / NANOS)}"
    new = first >= limits.BARE_COUNT or (before.number and before.part < limits.BARE_SHARE * since.part)
    return replace(
        _cause(
            facts,
            key,
            f"{since.bare} of {words.count(since.number, 'request')}{lately}{of} came to decode engine {key} without transfer "
            f"parameters: it {'computed' if until else 'computes'} their prompts itself",
            Evidence(
                f"{since.bare} of {len(rows)} without kv_transfer_params in {words.span(facts.present.seconds)}",
                f"{before.bare} of {before.number} in {words.span(facts.before.seconds)}",
            ),
            since.bare,
            Confidence.CERTAIN if new and since.part >= limits.BARE_SHARE else Confidence.LIKELY,
        ),
        until=until,
        since=_began(facts, key, rows, first),
    )


def _began(facts: Facts, key: EngineKey, rows: list[Closed], first: int) -> int:
    """Return when the first bare request ended, nanoseconds: in the window, or before it without enough others between."""
    began, others, enough = rows[first].time, first, limits.QUIET_COUNT / _share(rows[first:]).part
    for each in sorted(_requests(facts.before, key), key=lambda each: each.time, reverse=True):
        if others >= enough:
            break
        began, others = (each.time, 0) if _is_bare(each) else (began, others + 1)
    return sane(facts, began)


def _end(facts: Facts, rows: list[Closed]) -> int:
    """Return when the last bare request ended, nanoseconds, where others came since; 0 while it lasts."""
    last = max(number for number, each in enumerate(rows) if _is_bare(each))
    quiet = facts.now - rows[last].time >= limits.QUIET_SECONDS * NANOS
    # Of a part, as many must have come as usually hold several bare ones.
    enough = limits.QUIET_COUNT * len(rows) / sum(map(_is_bare, rows))
    return rows[last].time if quiet and len(rows) - 1 - last >= enough else 0


def _told_by_engine(facts: Facts, key: EngineKey, stall: admin.Stall) -> FoundCause:
    """Return the cause where the requests have not ended yet, or the role is guessed: the engine counts arrivals."""
    said = words.cut(stall.sentence)
    return _cause(facts, key, f"engine {key}: {said}", Evidence(said), stall.count, Confidence.LIKELY)


def _cause(
    facts: Facts, key: EngineKey, sentence: str, evidence: Evidence, requests: int, confidence: Confidence
) -> FoundCause:
    return FoundCause(
        "no_transfer_parameters",
        sentence,
        (key,),
        (evidence,),
        requests=requests,
        other_harm=RECOMPUTED_SECONDS * requests,
        confidence=confidence,
        alternatives=(
            "clients that go to the engine without the router",
            "the router has no prefill engine to send to: all are gone or taken out",
        ),
        commands=(
            f"agentctl get requests --slow --since {words.window(facts.present.seconds)}",
            f"agentctl describe engine {key}",
        ),
    )


def _requests(window: Window, key: EngineKey) -> list[Closed]:
    return [each for each in window.closed_of(key) if each.finish_reason != "abort"]


def _is_bare(closed: Closed) -> bool:
    return closed.kv_role == common.ROLE_UNSPECIFIED


def _share(rows: Sequence[Closed]) -> _Share:
    return _Share(len(rows), sum(map(_is_bare, rows)))
