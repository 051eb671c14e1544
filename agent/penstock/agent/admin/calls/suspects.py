"""``ListSuspects``: answers that may be wrong, from the journal."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.agent.admin.calls.events import read_in_turn, since_unix_nano
from penstock.agent.admin.calls.pairs import other_weights_of
from penstock.agent.admin.lookups import (
    MAX_UINT32,
    EventScan,
    RequestLog,
    clamp_unsigned,
    key_message,
    selection_of,
    source_target,
    timestamp_message,
)
from penstock.agent.errors import ContractError
from penstock.agent.journal import MAX_INTEGER, STEP_SECONDS, ReadBudget
from penstock.agent.traces.query import Suspicion, is_late_read, is_late_write, may_spoil, suspicions
from penstock.agent.traces.spans import EventEntry, RequestFacts, RequestKey
from penstock.proto.names import NANOS
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.events_pb2 import (
    SUSPECT_REASON_LATE_READ,
    SUSPECT_REASON_LATE_WRITE,
    SUSPECT_REASON_OTHER_ENGINE,
    Event,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.agent.admin.lookups import AgentContext, FoundEvent, OtherWeights
    from penstock.agent.journal import Reader
    from penstock.agent.parsing import Selection
    from penstock.proto.v1.common_pb2 import Peer

# Each is looked for by itself: what an engine suspects must not be hidden by failures that are many.
_KINDS = ("answer_suspected", "transfer_failure")
_DEFAULT_SINCE = 3600 * NANOS
_DEFAULT_LIMIT, MAX_SUSPECTS = 100, 1_000
_MAX_BYTES = 64 << 20
MAX_LATE_IDS = 1_000
_LATE_READ = (
    "its blocks were read after they had been freed; the answer that was computed from them may be wrong"
)
_LATE_WRITE = "a peer wrote into blocks of this engine that were free by then; an answer that used them at that time may be wrong"
_NO_READER = "this log does not have the request that read these blocks; ask the agent of the engine that read, or a relay"
_NOT_SEARCHED = "which request read these blocks was not searched: too much to read; give a shorter time"
_NO_VICTIM = "no log says which answers used these blocks then"


async def list_suspects(
    agent: AgentContext, request: admin.ListSuspectsRequest
) -> admin.ListSuspectsResponse:
    """Return the newest answers of the selected engines that may be wrong.

    Raises:
        ContractError: an invalid selector, or too many ids.

    """
    if len(request.late_request_ids) > MAX_LATE_IDS:
        raise ContractError(f"{len(request.late_request_ids)} late_request_ids; give at most {MAX_LATE_IDS}")
    return await suspects_at(agent, request, None)


async def suspects_at(
    agent: AgentContext, request: admin.ListSuspectsRequest, at: int | None
) -> admin.ListSuspectsResponse:
    """Return what :func:`list_suspects` would have at *at*, nanoseconds, from what the log held then; None for now."""
    selection = selection_of(request.selector)
    since = since_unix_nano(request, agent.clock() if at is None else at / NANOS, _DEFAULT_SINCE)
    limit = min(request.limit or _DEFAULT_LIMIT, MAX_SUSPECTS)
    weights = await other_weights_of(agent)

    def run(reader: Reader) -> admin.ListSuspectsResponse:
        until = MAX_INTEGER if at is None else reader.last_until(at)
        return _list(reader, request, selection, since, limit, weights, until)

    return await read_in_turn(agent, run)


@dataclass(slots=True)
class _Candidates:
    """What events point at, the newest first: as many suspicions, and beside them as many loads that may have spoiled answers.

    Attributes:
        full: there were more.

    """

    late: dict[RequestKey, list[EventEntry]] = field(default_factory=dict)
    suspected: dict[RequestKey, None] = field(default_factory=dict)
    loads: dict[RequestKey, None] = field(default_factory=dict)
    writes: list[FoundEvent] = field(default_factory=list)
    other_weights: dict[RequestKey, None] = field(default_factory=dict)
    full: bool = False

    def add(self, found: FoundEvent) -> None:
        """Take in what *found* points at, if there is room."""
        event = found.event
        key = RequestKey(found.source.key.server, event.request_id)
        failure = event.transfer_failure
        if event.HasField("answer_suspected"):
            if self._has_room(key in self.suspected):
                self.suspected[key] = None
        elif is_late_read(failure):
            if self._has_room(key in self.late):
                copy = Event()
                copy.CopyFrom(event)
                self.late.setdefault(key, []).append(EventEntry(found.source, copy))
        elif is_late_write(failure):
            if self._has_room():
                self.writes.append(found)
        elif may_spoil(failure) and event.request_id:
            if len(self.loads) < MAX_SUSPECTS or key in self.loads:
                self.loads[key] = None
            else:
                self.full = True

    def add_closed(self, found: FoundEvent) -> None:
        """Take in a request that may have read blocks of an engine with other weights, if there is room."""
        if len(self.other_weights) < MAX_SUSPECTS:
            self.other_weights[RequestKey(found.source.key.server, found.event.request_id)] = None
        else:
            self.full = True

    def _has_room(self, known: bool = False) -> bool:
        room = known or len(self.suspected) + len(self.late) + len(self.writes) < MAX_SUSPECTS
        self.full = self.full or not room
        return room


def _list(
    reader: Reader,
    request: admin.ListSuspectsRequest,
    selection: Selection,
    since: int,
    limit: int,
    weights: OtherWeights,
    until: int,
) -> admin.ListSuspectsResponse:
    candidates, cut = (
        (_Candidates(), False) if request.late_request_ids else _candidates(reader, since, until, weights)
    )
    # From now on: the events above have budgets of their own.
    allowance = ReadBudget(_MAX_BYTES, STEP_SECONDS)
    search = _Search(RequestLog(reader, allowance, until), selection, weights)
    found = (
        search.readers_of(request.late_request_ids)
        if request.late_request_ids
        else search.suspects(candidates)
    )
    suspects = list(found)
    suspects.sort(key=lambda each: -each.seen.ToNanoseconds())
    return admin.ListSuspectsResponse(
        suspects=suspects[:limit],
        truncated=cut or allowance.cut or len(suspects) > limit,
        unreadable_batches=clamp_unsigned(reader.unreadable, MAX_UINT32),
        # Of what was read in part, nothing is sure.
        cleared_late_request_ids=() if allowance.cut or reader.unreadable else sorted(search.cleared),
    )


def _candidates(reader: Reader, since: int, until: int, weights: OtherWeights) -> tuple[_Candidates, bool]:
    """Return what the events of batches up to *until* point at, and whether there are more."""
    candidates, cut = _Candidates(), False
    for kind in _KINDS:
        scan = EventScan.newest(reader, kinds=(kind,), since_unix_nano=since, until=until)
        for found in scan:
            candidates.add(found)
        cut = cut or scan.cut
    if weights:
        scan = EventScan.newest(reader, kinds=("request_closed",), since_unix_nano=since, until=until)
        for found in scan:
            if weights.may_read(found.source.key, found.event.request_closed.peer.address):
                candidates.add_closed(found)
        cut = cut or scan.cut
    return candidates, cut or candidates.full


class _Search:
    """Joins what events point at with the requests of the log.

    Attributes:
        cleared: requests whose blocks were read late, and whose readers all gave no answer that may be wrong.

    """

    def __init__(self, log: RequestLog, selection: Selection, weights: OtherWeights) -> None:
        self.cleared: set[str] = set()
        self._log = log
        self._selection = selection
        self._weights = weights

    def suspects(self, candidates: _Candidates) -> Iterator[admin.Suspect]:
        """Yield the suspects of selected engines, each request once."""
        owners: dict[RequestKey, RequestKey] = {}
        for owner in candidates.late:
            readers = self._log.readers(owner.request_id)
            # One that read from two is asked about the second only.
            self.cleared -= {owners[each].request_id for each in readers if each in owners}
            owners |= dict.fromkeys(readers, owner)
            if not readers:
                yield from self._half(owner, candidates.late[owner])
            elif owner.request_id:
                self.cleared.add(owner.request_id)
        for key in {**owners, **candidates.suspected, **candidates.loads, **candidates.other_weights}:
            read_from = owners.get(key)
            late = candidates.late[read_from] if read_from is not None else []
            suspect = self._of(key, read_from, late)
            if suspect is not None:
                yield suspect
        for write in candidates.writes:
            if self._selection.matches(source_target(write.source)):
                yield _victimless(write)

    def _of(self, key: RequestKey, owner: RequestKey | None, late: list[EventEntry]) -> admin.Suspect | None:
        """Return the suspect *key* of a selected engine, if it is one; *late* are reads of *owner*'s blocks."""
        facts = self._facts(key)
        found = suspicions(facts, late, self._weights.evidence) if facts is not None else []
        if owner is not None and (facts is None or found):
            self.cleared.discard(owner.request_id)
        if facts is None or not found or not self._selects(facts):
            return None
        suspect = _suspect(facts, found)
        peer = self._weights.peer_of(facts)
        if peer is not None:
            suspect.peer_key.CopyFrom(key_message(peer))
        if owner is not None:
            suspect.peer_request_id = owner.request_id
            suspect.peer_key.CopyFrom(key_message(late[0].source.key))
        return suspect

    def readers_of(self, late_request_ids: Iterable[str]) -> Iterator[admin.Suspect]:
        """Yield what read from requests of another agent's prefill side; their owners know that it was too late."""
        for request_id in dict.fromkeys(late_request_ids):
            for key in self._log.readers(request_id):
                facts = self._facts(key)
                if facts is None or not self._selects(facts):
                    continue
                # When it was read, only the owner knows: the end stands for it.
                late = Event(time_unix_nano=facts.end_unix_nano)
                found = suspicions(facts, [EventEntry(facts.source, late)])
                suspect = _suspect(facts, found)
                suspect.peer_request_id = request_id
                suspect.cleared = not found
                yield suspect

    def _half(self, owner: RequestKey, late: list[EventEntry]) -> Iterator[admin.Suspect]:
        source = late[0].source
        if not self._selection.matches(source_target(source)):
            return
        facts = self._facts(owner)
        suspect = admin.Suspect(
            trace_id=facts.identity.trace_id if facts is not None else "",
            reasons=[SUSPECT_REASON_LATE_READ],
            peer_key=key_message(source.key),
            peer_request_id=owner.request_id,
            evidence=[_LATE_READ],
            # The budget for the search may have run out before the reader was found.
            missing=_NOT_SEARCHED if self._log.cut else _NO_READER,
            rehearsal=all(entry.event.rehearsal for entry in late),
            seen=timestamp_message(min(entry.event.time_unix_nano for entry in late)),
        )
        yield suspect

    def _facts(self, key: RequestKey) -> RequestFacts | None:
        entries = self._log.entries(key)
        facts = RequestFacts.of(key.request_id, entries)
        return facts if facts.own else None

    def _selects(self, facts: RequestFacts) -> bool:
        return self._selection.matches(source_target(facts.source))


def _suspect(facts: RequestFacts, found: list[Suspicion]) -> admin.Suspect:
    closing = facts.closing
    suspect = admin.Suspect(
        key=key_message(facts.source.key),
        request_id=facts.request_id,
        trace_id=facts.identity.trace_id,
        reasons=[each.reason for each in found],
        peer=_read_from(facts),
        evidence=[each.evidence for each in found],
        rehearsal=bool(found) and all(each.rehearsal for each in found),
        seen=timestamp_message(min((each.time_unix_nano for each in found), default=facts.end_unix_nano)),
    )
    if closing is not None and facts.closed is not None:
        suspect.finish_reason = closing.finish_reason
        suspect.output_tokens = closing.output_tokens
        suspect.peer_request_id = closing.remote_request_id
        suspect.ended.FromNanoseconds(facts.closed.event.time_unix_nano)
    return suspect


def _read_from(facts: RequestFacts) -> Peer | None:
    """Return where the state of a request came from: not always from where the request names."""
    bodies = (entry.event.answer_suspected for entry in facts.suspected)
    return next((body.peer for body in bodies if body.reason == SUSPECT_REASON_OTHER_ENGINE), facts.peer)


def _victimless(write: FoundEvent) -> admin.Suspect:
    return admin.Suspect(
        key=key_message(write.source.key),
        reasons=[SUSPECT_REASON_LATE_WRITE],
        peer=write.event.transfer_failure.peer,
        peer_request_id=write.event.request_id,
        evidence=[_LATE_WRITE],
        missing=_NO_VICTIM,
        rehearsal=write.event.rehearsal,
        seen=timestamp_message(write.event.time_unix_nano),
    )
