"""One diagnosis of a fleet from those of its agents. Pure."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.agent.badness import NO_SERVERS
from penstock.agent.diagnosis.diagnose import MAX_CAUSES
from penstock.agent.diagnosis.facts import words
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_UINT32, _MAX_UINT64 = (1 << 32) - 1, (1 << 64) - 1
_EVIDENCE: Final = 10
_LISTED: Final = 20
_PEERS: Final = 256
# Who says what no agent alone knows.
_BETWEEN: Final = "relay"
# Two versions in one fleet are one thing, whoever sees it.
_VERSIONS: Final = "versions_mixed"
# Each id that several engines have is a thing of its own.
_OWN: Final = frozenset({_VERSIONS, "engine_id_shared"})


@dataclass(slots=True)
class _Merged:
    """Causes that became one.

    Attributes:
        worst: harm of the one whose sentence it has.
        agents: that have seen it.
        number: of causes.

    """

    whole: admin.DiagnosedCause
    worst: float
    agents: set[str] = field(default_factory=set)
    number: int = 1


def merge_diagnoses(
    answers: Sequence[tuple[str, admin.Diagnosis]],
    between: Sequence[admin.DiagnosedCause] = (),
    *,
    past: bool = False,
) -> admin.Diagnosis:
    """Return the diagnosis of all: causes of one kind about one peer are one, and say how many agents have seen them.

    Args:
        answers: by agent's name; the engines' keys are those of the fleet.
        between: what only who sees all agents knows; those of one kind are one.
        past: they are about a moment of the past.

    """
    merged = admin.Diagnosis()
    causes: dict[tuple[str, ...], _Merged] = {}
    for name, answer in answers:
        merged.engines = min(merged.engines + answer.engines, _MAX_UINT32)
        merged.missing.extend(f"{name}: {each}" for each in answer.missing[:_LISTED])
        for cause in answer.causes:
            _add(causes, name, cause, _place(name, cause))
    for cause in between:
        place = _place(_BETWEEN, cause) if cause.kind in _OWN else (cause.kind, "", _BETWEEN)
        _add(causes, _BETWEEN, cause, place)
    _put_handshakes_below(causes)
    _fill_windows(merged, answers)
    for each in causes.values():
        _say_where(each, len(answers))
    ordered = sorted(
        (each.whole for each in causes.values()),
        key=lambda each: (
            each.HasField("until"),
            each.peer in NO_SERVERS,
            -each.harm,
            -each.confidence,
            each.kind,
            each.peer,
        ),
    )
    merged.causes.extend(ordered[:MAX_CAUSES])
    if len(ordered) > MAX_CAUSES:
        merged.missing.append(f"{words.count(len(ordered) - MAX_CAUSES, 'lesser cause')} left out")
    merged.at.FromNanoseconds(max((answer.at.ToNanoseconds() for _, answer in answers), default=0))
    merged.looked_at.append(
        f"{words.count(len(answers), 'agent')} with {words.count(merged.engines, 'engine')}"
    )
    merged.verdict, merged.sentence = _verdict(answers, ordered, past=past)
    return merged


def _say_where(merged: _Merged, agents: int) -> None:
    """Say of what was several causes that its sentence is the worst, and where they were seen."""
    whole, on = merged.whole, f"on {words.count(len(merged.whole.engines), 'engine')}"
    whole.agents = max(1, len(merged.agents - {_BETWEEN}))
    if whole.agents > 1:
        seen = f"seen by {whole.agents} of {words.count(agents, 'agent')}"
        whole.sentence = f"{whole.sentence} (the worst; {seen})"
        whole.evidence.insert(0, admin.DiagnosisEvidence(fact=f"{seen}, {on}"))
    elif merged.number > 1:
        whole.sentence = f"{whole.sentence} (the worst of {merged.number}, {on})"


def _fill_windows(merged: admin.Diagnosis, answers: Sequence[tuple[str, admin.Diagnosis]]) -> None:
    shortest = min((answer.since.ToNanoseconds() for _, answer in answers), default=0)
    merged.since.FromNanoseconds(shortest)
    merged.baseline.FromNanoseconds(
        min((answer.baseline.ToNanoseconds() for _, answer in answers), default=0)
    )


def _place(agent: str, cause: admin.DiagnosedCause) -> tuple[str, ...]:
    # What is about no peer is its engines' own; a policy is the same on every pod.
    return (cause.kind, cause.peer) if cause.peer else (cause.kind, "", *_subject(agent, cause))


def _add(
    causes: dict[tuple[str, ...], _Merged], agent: str, cause: admin.DiagnosedCause, place: tuple[str, ...]
) -> None:
    merged = causes.get(place)
    if merged is None:
        whole = admin.DiagnosedCause()
        whole.CopyFrom(cause)
        _name_evidence(whole, agent)
        causes[place] = _Merged(whole, cause.harm, {agent})
        return
    whole = merged.whole
    # It lasts while one agent says so, and that one's words are in the present tense.
    lasts, lasted = not cause.HasField("until"), not whole.HasField("until")
    if (lasts, cause.harm) > (lasted, merged.worst):
        whole.sentence, merged.worst = cause.sentence, cause.harm
    if lasts:
        whole.ClearField("until")
    elif not lasted:
        whole.until.FromNanoseconds(max(whole.until.ToNanoseconds(), cause.until.ToNanoseconds()))
    if cause.HasField("since") and (
        not whole.HasField("since") or cause.since.ToNanoseconds() < whole.since.ToNanoseconds()
    ):
        whole.since.CopyFrom(cause.since)
    whole.effects.extend(cause.effects[: max(0, _EVIDENCE - len(whole.effects))])
    merged.agents.add(agent)
    merged.number += 1
    known = {(key.server, key.engine) for key in whole.engines}
    whole.engines.extend(key for key in cause.engines if (key.server, key.engine) not in known)
    peers = set(whole.peers)
    whole.peers.extend([each for each in cause.peers if each not in peers][: max(0, _PEERS - len(peers))])
    _add_harm(whole, cause)
    room = max(0, _EVIDENCE - len(whole.evidence))
    named = admin.DiagnosedCause(evidence=cause.evidence[:room])
    _name_evidence(named, agent)
    whole.evidence.extend(named.evidence)
    whole.alternatives.extend(each for each in cause.alternatives if each not in whole.alternatives)
    whole.commands.extend(each for each in cause.commands if each not in whole.commands)
    del whole.commands[_EVIDENCE:]


def _add_harm(whole: admin.DiagnosedCause, cause: admin.DiagnosedCause) -> None:
    """Add what *cause* did to requests, within what a field holds."""
    whole.requests = min(whole.requests + cause.requests, _MAX_UINT64)
    whole.requests_failed = min(whole.requests_failed + cause.requests_failed, _MAX_UINT64)
    whole.seconds = _finite(whole.seconds + cause.seconds)
    whole.harm = _finite(whole.harm + cause.harm)
    whole.confidence = max(whole.confidence, cause.confidence)


def _finite(seconds: float) -> float:
    return max(-sys.float_info.max, min(seconds, sys.float_info.max))


def _subject(agent: str, cause: admin.DiagnosedCause) -> tuple[str, ...]:
    """Return what tells causes without a peer apart: the policy of its first words, or the agent, engines and words.

    One agent may say two things of one engine, such as two orders: then its sentences differ.
    """
    if cause.kind == "policy_fails_loads":
        return (cause.sentence.split(" (generation", 1)[0],)
    if cause.kind == _VERSIONS:
        return (cause.sentence,)
    engines = sorted(f"{key.server}/{key.engine}" for key in cause.engines)
    return (agent, *engines, cause.sentence)


def _put_handshakes_below(causes: dict[tuple[str, ...], _Merged]) -> None:
    """Make the failed handshakes between mixed versions effects of that; agents that know one side alone tell them."""
    for mixed in [each.whole for each in causes.values() if each.whole.kind == _VERSIONS]:
        engines = {(key.server, key.engine) for key in mixed.engines}
        for place, each in list(causes.items()):
            cause = each.whole
            lasts = cause.kind == "incompatible_peer" and not cause.HasField("until")
            between = (
                cause.peer in mixed.peers and {(key.server, key.engine) for key in cause.engines} <= engines
            )
            if lasts and between:
                _add_harm(mixed, cause)
                if len(mixed.effects) < _PEERS:
                    mixed.effects.append(cause)
                del causes[place]


def _name_evidence(cause: admin.DiagnosedCause, agent: str) -> None:
    for evidence in cause.evidence:
        evidence.fact = f"{agent}: {evidence.fact}"


def _verdict(
    answers: Sequence[tuple[str, admin.Diagnosis]], causes: Sequence[admin.DiagnosedCause], *, past: bool
) -> tuple[admin.DiagnosisVerdict, str]:
    lasting = sum(not cause.HasField("until") for cause in causes)
    if lasting:
        others = words.others(lasting - 1, len(causes) - lasting)
        return admin.DIAGNOSIS_VERDICT_CAUSES, f"{causes[0].sentence}{others}"
    unsure = [
        (name, answer) for name, answer in answers if answer.verdict != admin.DIAGNOSIS_VERDICT_NOTHING_WRONG
    ]
    if unsure:
        name, answer = unsure[0]
        others = f"; {len(answers) - len(unsure)} of {words.count(len(answers), 'agent')} say that {words.well(past=past)}"
        return admin.DIAGNOSIS_VERDICT_CANNOT_TELL, f"{name}: {answer.sentence}{others}"
    on = words.count(len(answers), "agent")
    if causes:
        ended = words.count(len(causes), "cause has", "causes have")
        when = "then" if past else "now"
        return admin.DIAGNOSIS_VERDICT_NOTHING_WRONG, f"{words.well(past=past)} {when} on {on}; {ended} ended"
    return admin.DIAGNOSIS_VERDICT_NOTHING_WRONG, f"{words.well(past=past)} on {on}"
