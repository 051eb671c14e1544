"""The panel of a condition: what the diagnosis says of it, since when, and the plot in which one sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.diagnosis import MAX_CAUSES
from penstock.agent.page.details.arguments import name_of
from penstock.agent.page.details.detail import (
    Detail,
    Link,
    Section,
    TableSection,
    sentences,
    table_section,
    text_section,
)
from penstock.agent.page.details.evidence import evidence_section
from penstock.agent.page.details.tables import loads_policy_section, readers_section, since_of
from penstock.agent.page.screen import diagnose_command, diagnose_request, shown_cause
from penstock.agent.page.wire import AdminCalls, plain
from penstock.agent.views import text
from penstock.agent.views.tables import Table
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

_MAX_ENGINES = 30


async def condition_detail(calls: AdminCalls, query: Mapping[str, str], since: float | None) -> Detail:
    """Return the panel of a cause of the verdict; *since*: seconds that the verdict is about, None for the usual.

    Raises:
        AnswerError: the question names no kind, or nobody answers.

    """
    kind, peer = name_of(query, "kind"), name_of(query, "peer", needed=False)
    engine = name_of(query, "engine", needed=False)
    diagnosis: admin.Diagnosis = await calls.call("Diagnose", diagnose_request(since))
    cause = find_cause(diagnosis, kind, peer, engine)
    subject = f"{kind}{f': {peer or engine}' if peer or engine else ''}"
    said = [*diagnosis.looked_at, *(f"not known: {each}" for each in diagnosis.missing)]
    rest = text_section("What the diagnosis looked at", map(text.folded, said), folded=True)
    if cause is None:
        found: list[Section] = [evidence_section(kind, [plain(engine)] if engine else [], plain(peer))]
        lines = [_without(diagnosis), f"The verdict now: {text.folded(diagnosis.sentence)}"]
    else:
        found = [section async for section in _sections(calls, cause, engine)]
        lines = [text.folded(cause.sentence), *_facts(cause, diagnosis.at.ToNanoseconds() / 1e9)]
    return Detail(
        title=plain(f"Condition {subject}"),
        sentences=sentences(lines),
        command=diagnose_command(since),
        sections=(*found, rest),
    )


def find_cause(diagnosis: admin.Diagnosis, kind: str, peer: str, engine: str) -> admin.DiagnosedCause | None:
    """Return a cause, or what one brings about, by the names that the page shows; None where there is none. Pure.

    What is about a peer is the same condition at other engines.
    """
    causes = (each for cause in diagnosis.causes for each in (cause, *cause.effects))
    found = [each for each in causes if each.kind == kind and peer in {each.peer, plain(each.peer)}]
    if not engine:
        return found[0] if found else None
    here = [each for each in found if engine in _names(each)]
    return here[0] if here else found[0] if found and peer else None


def _names(cause: admin.DiagnosedCause) -> set[str]:
    names = list(map(text.engine, cause.engines))
    return {*names, *map(plain, names)}


def _without(diagnosis: admin.Diagnosis) -> str:
    """Return what it means that the diagnosis does not have it."""
    if diagnosis.verdict == admin.DIAGNOSIS_VERDICT_CANNOT_TELL:
        return "Whether this condition lasts is not known: the diagnosis cannot tell"
    if len(diagnosis.causes) >= MAX_CAUSES:
        return f"Whether this condition lasts is not known: the diagnosis has the worst {MAX_CAUSES} only"
    partly = ", but it could not look at everything: see below" if diagnosis.missing else ""
    return f"This condition is over: the diagnosis does not have it any more{partly}"


def _facts(cause: admin.DiagnosedCause, now: float) -> Iterator[str]:
    """Yield since when, until when, how sure it is, and what it did to requests."""
    since = since_of(cause.since, now) if cause.HasField("since") else "since when is not known"
    over = f"; it ended {text.ago_of(cause.until, now)}" if cause.HasField("until") else ""
    yield f"{since[0].upper()}{since[1:]}{over}; {shown_cause(cause, now).confidence}"
    if cause.HasField("until"):
        yield "This condition is over"
    if cause.requests:
        failed = f", {cause.requests_failed} of them failed" if cause.requests_failed else ""
        waited = f", {text.span_of_time(cause.seconds)} of waiting" if cause.seconds else ""
        yield f"Harm: {text.count(cause.requests, 'request')}{failed}{waited}"


async def _sections(calls: AdminCalls, cause: admin.DiagnosedCause, engine: str) -> AsyncIterator[Section]:
    """Yield the plot, the evidence, who has it, what the policy does, what else it could be, and what to run."""
    now = calls.clock()
    shown = shown_cause(cause, now)
    names = sorted(map(plain, map(text.engine, cause.engines)), key=lambda name: name != plain(engine))
    yield evidence_section(cause.kind, names, shown.peer)
    # Its time is a sentence already.
    rows = shown.evidence[1:] if cause.HasField("since") else shown.evidence
    yield table_section(
        "Evidence", Table(("NOW", "BEFORE"), [(row.fact, row.before or text.NONE) for row in rows])
    )
    yield await _readers(calls, cause, now)
    whose = next((key for key in cause.engines if plain(text.engine(key)) == names[0]), None)
    if whose is not None:
        yield await loads_policy_section(calls, whose)
    lines: list[tuple[str, ...]] = [(line,) for line in shown.commands]
    yield table_section("What to run next", Table(("COMMAND",), lines), commands=shown.commands)
    if shown.alternatives:
        yield text_section("What else it could be", shown.alternatives)


async def _readers(calls: AdminCalls, cause: admin.DiagnosedCause, now: float) -> TableSection:
    """Return the engines where it is seen; of a peer, all that have it."""
    if cause.peer:
        listed = await calls.call("ListPeers", admin.ListPeersRequest(state="all", peers=[cause.peer]))
        readers = [item for item in listed.peers if item.peer.address == cause.peer]
        if readers:
            return readers_section("Who reads from it, or is read by it", readers, now)
    keys = cause.engines[:_MAX_ENGINES]
    left = len(cause.engines) - len(keys)
    rows: list[tuple[str, ...]] = [(text.engine(key),) for key in keys]
    return table_section(
        "Where it is seen",
        Table(("ENGINE",), rows),
        sentence=f"{left} more are left out; the command lists all"
        if left
        else ""
        if rows
        else "at no engine",
        links=[Link("engine", engine=text.engine(key)) for key in keys],
    )
