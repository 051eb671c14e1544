"""From facts to a verdict, and the verdict as a message. Pure: the same facts give the same verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penstock.agent import limits
from penstock.agent.badness import NO_SERVERS
from penstock.agent.diagnosis.facts import (
    Attribution,
    Facts,
    LostEntries,
    Verdict,
    VerdictKind,
    Window,
    attribute,
    words,
)
from penstock.agent.diagnosis.rules import RULES, pair_causes, shared_causes
from penstock.agent.diagnosis.symptoms import BLIND, under_their_causes
from penstock.proto.names import NANOS
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import EngineKey as EngineKeyMessage

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.agent.diagnosis.facts import FoundCause
    from penstock.agent.model import EngineKey
    from penstock.agent.pairs import SharedId

MAX_CAUSES: Final = 20
"""Causes that a verdict shows, the most harmful: a reader who has more to mend begins with these."""
# Peers that the message of a cause names: more are no help to a reader, and a message stays small.
_MAX_PEERS: Final = 256


def diagnose(facts: Facts) -> Verdict:
    """Return what is wrong, the most harmful first; that nothing is; or why the facts do not show it."""
    shares = attribute(facts)
    causes = _without_effects([cause for rule in RULES for cause in rule(facts, shares)])
    causes = sorted((_dated(facts, cause) for cause in under_their_causes(causes, _places(facts))), key=_rank)
    if not _is_known(facts.before):
        causes = [_alone(cause) for cause in causes]
    missing = (*_incomplete(facts), *_left_out(len(causes)))
    looked_at = tuple(_looked_at(facts))
    shown = tuple(causes[:MAX_CAUSES])
    lasting = [cause for cause in causes if not cause.until]
    if lasting:
        return Verdict(VerdictKind.CAUSES, _summary(lasting, causes), shown, looked_at, missing)
    unknown = tuple(_unknown(facts))
    if unknown:
        sentence = f"I cannot tell: {unknown[0]}{_over(facts, causes)}"
        return Verdict(VerdictKind.CANNOT_TELL, sentence, shown, looked_at, (*unknown, *missing))
    if causes:
        then = "then" if facts.past else "now"
        sentence = f"{words.well(past=bool(facts.past))} {then}{_over(facts, causes)}"
        return Verdict(VerdictKind.NOTHING_WRONG, sentence, shown, looked_at, missing)
    sentence = f"{words.well(past=bool(facts.past))} in the last {words.span(_read(facts.present))}"
    return Verdict(VerdictKind.NOTHING_WRONG, sentence, (), looked_at, missing)


def _over(facts: Facts, ended: Sequence[FoundCause]) -> str:
    """Return how many causes have ended and when the last one did, after a semicolon; or ""."""
    if not ended:
        return ""
    newest = max(cause.until for cause in ended)
    return f"; {words.count(len(ended), 'cause')} ended, the last one {words.ago(newest, facts.now)}"


def _places(facts: Facts) -> dict[EngineKey, str]:
    return {
        words.key_of(each.key): each.facts.side_channel for each in facts.engines if each.facts.side_channel
    }


def _read(window: Window) -> float:
    """Return of how many seconds, the newest, every kind of event was read; all of them but for a rounding."""
    read = min(window.read, window.read_requests)
    return window.seconds if read >= window.seconds - 1 else read


def _is_known(before: Window) -> bool:
    """Return whether enough of the time before was read to say "none in 1h" of it."""
    return before.seconds > 0 and _read(before) >= limits.READ_SHARE * before.seconds


def _dated(facts: Facts, cause: FoundCause) -> FoundCause:
    """Return *cause* and its effects with when they ended in their sentences."""
    effects = tuple(_dated(facts, each) for each in cause.effects)
    ended = f"; ended {words.ago(cause.until, facts.now)}" if cause.until else ""
    return replace(cause, sentence=f"{cause.sentence}{ended}", effects=effects)


def _alone(cause: FoundCause) -> FoundCause:
    """Return *cause* and its effects without a time before, where none is known."""
    evidence = tuple(each._replace(before="") for each in cause.evidence)
    return replace(cause, evidence=evidence, effects=tuple(map(_alone, cause.effects)))


def _rank(cause: FoundCause) -> tuple[object, ...]:
    # What has ended never leads, nor what is no server; who cannot see says so first.
    return (
        bool(cause.until),
        cause.kind != BLIND,
        cause.peer in NO_SERVERS,
        -max(each.harm for each in (cause, *cause.effects)),
        -cause.confidence,
        cause.kind,
        cause.peer,
        cause.engines,
        cause.sentence,
    )


def _summary(lasting: Sequence[FoundCause], causes: Sequence[FoundCause]) -> str:
    return f"{lasting[0].sentence}{words.others(len(lasting) - 1, len(causes) - len(lasting))}"


# Causes that are an effect where one of another kind is about the same engine: a lost engine is part of its peer's cause.
_EFFECTS: Final = frozenset({"engine_lost", "engine_away"})


def _without_effects(causes: list[FoundCause]) -> list[FoundCause]:
    """Return *causes* without those that others have among their evidence."""
    told = [evidence.fact for cause in causes if cause.kind not in _EFFECTS for evidence in cause.evidence]
    return [cause for cause in causes if not _is_told(cause, told)]


def _is_told(cause: FoundCause, told: list[str]) -> bool:
    if cause.kind not in _EFFECTS or not cause.engines or cause.requests:
        return False
    start = f"engine {cause.engines[0]} vanished without a goodbye"
    return any(fact.startswith(start) for fact in told)


def _looked_at(facts: Facts) -> Iterator[str]:
    present, before = facts.present, facts.before
    connected = sum(engine.connected for engine in facts.engines)
    yield f"{words.count(connected, 'connected engine')} and {words.count(len(facts.peers) + facts.quiet_peers, 'peer')}"
    for name, window in (("the last", present), ("compared with the", before)):
        what = ", ".join(
            (
                words.count(len(window.closed), "closed request"),
                words.count(len(window.waits), "wait"),
                words.count(len(window.failures), "failure"),
            )
        )
        if window is before and not before.seconds:
            yield "no time before it: there is nothing to compare with"
            continue
        after = " before" if window is before else ""
        yield f"{name} {words.span(window.seconds)}{after}: {what}"


def _incomplete(facts: Facts) -> Iterator[str]:
    """Yield what was not read."""
    for window, time in ((facts.present, "of the last {}"), (facts.before, "of the {} before")):
        for read, what in (
            (window.read, "failures"),
            (window.read_requests, "waits and closed requests"),
        ):
            if read < window.seconds - 1:
                part = f"the newest {words.span(read)}" if read else "none of it"
                of = time.format(words.span(window.seconds))
                yield f"there was too much to read: {of}, {what} were examined only for {part}"
    if facts.suspects_cut:
        yield "there was too much to read: not all answers that may be wrong were looked for; agentctl get suspects does"
    if facts.log_begins:
        yield f"the log begins {words.span(facts.log_begins)} ago: what was before is not known"
    if facts.unreadable:
        yield f"{words.count(facts.unreadable, 'damaged batch', 'damaged batches')} could not be read"
    older = LostEntries.of(facts).older
    if older:
        yield f"{words.engines(older)} lost entries since the process began, perhaps before this time: agentctl describe engine"
    yield from facts.past
    dark = [words.key_of(each.key) for each in facts.engines if each.connected and not each.HasField("facts")]
    if dark and not facts.past:
        yield f"{words.engines(dark)} sent no snapshot yet: what it holds now is not known"


def _left_out(number: int) -> Iterator[str]:
    if number > MAX_CAUSES:
        yield f"{words.count(number - MAX_CAUSES, 'lesser cause')} left out"


def _unknown(facts: Facts) -> Iterator[str]:
    """Yield why the facts do not show that nothing is wrong."""
    connected = [engine for engine in facts.engines if engine.connected]
    since = words.span(facts.present.seconds)
    if not facts.engines:
        yield "no engine is known"
    elif not connected:
        yield "no engine is connected"
    elif not facts.past and not any(engine.HasField("facts") for engine in connected):
        yield "no engine has sent a snapshot yet"
    if _read(facts.present) < limits.READ_SHARE * facts.present.seconds:
        yield f"most of the last {since} is not in the log, or was too much to read"
    elif not (facts.present.closed or facts.present.waits):
        yield f"no request ended, or waited for a transfer, in the last {since}; {_queued(facts, connected)}"
    if facts.unreadable:
        yield "a part of the log is damaged"


def _queued(facts: Facts, connected: Sequence[admin.Engine]) -> str:
    """Return what is in the engines' own queues, as far as that is known."""
    known = [engine.queue for engine in connected if engine.HasField("queue")]
    if facts.past or len(known) < len(connected) or not known:
        return "what waits in the engines' own queues is not known"
    running, waiting = (
        sum(each.running for each in known),
        sum(row.count for each in known for row in each.waiting),
    )
    if not running + waiting:
        return "none runs or waits in the engines' own queues"
    runs = words.count(running, "request runs", "requests run")
    return f"{runs} and {waiting} {'waits' if waiting == 1 else 'wait'} in the engines' own queues"


def diagnosis_message(verdict: Verdict, facts: Facts) -> admin.Diagnosis:
    """Return *verdict* about *facts* as a message."""
    message = admin.Diagnosis(
        verdict=int(verdict.answer),  # type: ignore[arg-type]
        sentence=verdict.sentence,
        causes=map(cause_message, verdict.causes),
        looked_at=verdict.looked_at,
        missing=verdict.missing,
        engines=len(facts.engines),
        harmless_late_reads=[
            EngineKeyMessage(server=key.server, engine=key.engine) for key in facts.harmless_late_reads
        ],
    )
    message.at.FromNanoseconds(facts.now)
    message.since.FromNanoseconds(int(facts.present.read * NANOS))
    message.baseline.FromNanoseconds(int(facts.before.read * NANOS))
    return message


def cause_message(cause: FoundCause) -> admin.DiagnosedCause:
    """Return *cause* as a message."""
    message = admin.DiagnosedCause(
        kind=cause.kind,
        sentence=cause.sentence,
        engines=[EngineKeyMessage(server=key.server, engine=key.engine) for key in cause.engines],
        peer=cause.peer,
        peers=cause.peers[:_MAX_PEERS],
        requests=cause.requests,
        seconds=round(cause.seconds, 3),
        requests_failed=cause.failed,
        harm=round(cause.harm, 3),
        confidence=int(cause.confidence),  # type: ignore[arg-type]
        evidence=[admin.DiagnosisEvidence(fact=each.fact, before=each.before) for each in cause.evidence],
        alternatives=cause.alternatives,
        commands=cause.commands,
        effects=map(cause_message, cause.effects),
    )
    if cause.until:
        message.until.FromNanoseconds(cause.until)
    if cause.since:
        message.since.FromNanoseconds(cause.since)
    return message


def diagnose_pairs(pairs: Sequence[admin.Pair], now: int) -> list[admin.DiagnosedCause]:
    """Return the causes of *pairs*, of different weights and of facts that no handshake accepts; *now*: nanoseconds."""
    facts = Facts(now, Window(), Window(), pairs=pairs)
    return [cause_message(each) for each in pair_causes(facts, Attribution({}))]


def diagnose_shared_ids(groups: Sequence[SharedId], now: int) -> list[admin.DiagnosedCause]:
    """Return the causes of engines that have one connector engine id; *now*: nanoseconds."""
    return [cause_message(each) for each in shared_causes(Facts(now, Window(), Window()), groups)]
