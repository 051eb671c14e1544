"""What the reading verbs and the page claim of one moment, and where two of them contradict each other."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from penstock.agent.badness import badness
from penstock.agent.daemon.status_report import condition_families
from penstock.agent.page.screen import ScreenAnswers, build_screen
from penstock.agent.views import text
from penstock.agent.views.checks.cause_checks import Judgement, check_causes
from penstock.agent.views.checks.findings import OK
from penstock.agent.views.peers import condition_word
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penstock.agent.page.screen import Screen
    from penstock.agent.views.checks.findings import Finding
    from penstock.proto.v1.admin_pb2_grpc import AdminStub

# What the judge alone says of a peer.
_JUDGED: Final = frozenset(
    {
        admin.PEER_CONDITION_UNREACHABLE,
        admin.PEER_CONDITION_INCOMPATIBLE,
        admin.PEER_CONDITION_LOST,
        admin.PEER_CONDITION_WRONG_ENGINE,
        admin.PEER_CONDITION_OTHER_WEIGHTS,
    }
)
_SUSPECTING: Final = frozenset({"answers_suspect", "weights_differ", "late_reads"})
_OF_PAIRS: Final = frozenset({"weights_differ", "incompatible_pair", "incompatible_peer"})
_GONE: Final = ("engine_lost", "engine_away", "agent_blind")
# Requests of each kind that are explained: wrong answers and failed ones.
_EXPLAINED: Final = 20
# "1 leases", "1 request wait", "1 request failed because their …".
_MANY_OF_ONE: Final = re.compile(
    r"(?<![\w.,:/-])1 (?!more\b)(?:[a-z]+s (?:of|were|are|have|wait|fail)\b|[a-z]+ (?:were|are|have|wait|fail)\b|[^.,;:]* their\b)"
)
_PATIENCE: Final = 60.0


@dataclass(frozen=True, slots=True)
class Claims:
    """The answers of one moment to each question.

    Attributes:
        failed: requests that failed in the window of the diagnosis.
        explained: what ``explain`` says of these and of the suspects, by request id.

    """

    diagnosis: admin.Diagnosis
    engines: admin.ListEnginesResponse
    peers: admin.ListPeersResponse
    suspects: admin.ListSuspectsResponse
    pairs: admin.ListPairsResponse
    failed: admin.ListRequestsResponse
    bill: admin.Bill
    explained: dict[str, str]
    screen: Screen
    findings: tuple[Finding, ...]
    series: frozenset[tuple[str, ...]]

    @classmethod
    def of(cls, stub: AdminStub, now: float) -> Claims:
        """Ask an agent whose clock stands at *now*, seconds since the epoch."""
        diagnosis = stub.Diagnose(admin.DiagnoseRequest(), timeout=_PATIENCE)
        since = diagnosis.since
        suspects = stub.ListSuspects(admin.ListSuspectsRequest(since=since), timeout=_PATIENCE)
        failed = stub.ListRequests(
            admin.ListRequestsRequest(outcome=common.OUTCOME_FAILED, since=since, limit=1_000),
            timeout=_PATIENCE,
        )
        engines = stub.ListEngines(admin.ListEnginesRequest(), timeout=_PATIENCE)
        peers = stub.ListPeers(admin.ListPeersRequest(), timeout=_PATIENCE)
        conditions, *_ = condition_families(diagnosis)
        return cls(
            diagnosis,
            engines,
            peers,
            suspects,
            stub.ListPairs(admin.ListPairsRequest(), timeout=_PATIENCE),
            failed,
            stub.GetBill(admin.GetBillRequest(since=since), timeout=_PATIENCE),
            _explained(stub, (suspects.suspects, failed.requests)),
            build_screen(ScreenAnswers(now=now, diagnosis=diagnosis, engines=engines, peers=peers)),
            tuple(check_causes(Judgement(diagnosis), engines.engines)),
            frozenset(sample.labels for sample in conditions.samples),
        )

    @property
    def lasting(self) -> list[admin.DiagnosedCause]:
        """The causes that last, without what they bring about."""
        return [each for each in self.diagnosis.causes if not each.HasField("until")]

    @property
    def all_lasting(self) -> list[admin.DiagnosedCause]:
        """The same with what they bring about."""
        return [each for cause in self.lasting for each in (cause, *cause.effects)]


def _explained(
    stub: AdminStub, lists: Iterable[Sequence[admin.Suspect] | Sequence[admin.RequestSummary]]
) -> dict[str, str]:
    names = (each.request_id for rows in lists for each in rows[:_EXPLAINED] if each.request_id)
    return {
        name: "\n".join(stub.Explain(admin.GetTraceRequest(request_id=name), timeout=_PATIENCE).sentences)
        for name in names
    }


def contradictions(claims: Claims) -> list[str]:
    """Return what two answers say differently, a line each."""
    rules = (
        _headline,
        _tense,
        _peers,
        _cells,
        _pairs,
        _suspects,
        _engines,
        _stalls,
        _doctor,
        _series,
        _explain,
        _bill,
        _number,
    )
    return [f"{rule.__name__}: {each}" for rule in rules for each in rule(claims)]


def _headline(claims: Claims) -> Iterator[str]:
    diagnosis, shown = claims.diagnosis, claims.screen.verdict
    if shown.sentence != diagnosis.sentence:
        yield f"the page says {shown.sentence!r}, diagnose {diagnosis.sentence!r}"
    if (diagnosis.verdict == admin.DIAGNOSIS_VERDICT_CAUSES) != bool(claims.lasting):
        yield f"{len(claims.lasting)} causes last, and the verdict is {diagnosis.verdict}"
    first = diagnosis.causes[0] if diagnosis.causes else None
    if claims.lasting and first != claims.lasting[0]:
        yield f"what has ended leads: {first.sentence if first is not None else ''}"


def _tense(claims: Claims) -> Iterator[str]:
    now = claims.diagnosis.at.ToNanoseconds()
    for cause in claims.diagnosis.causes:
        since, until = cause.since.ToNanoseconds(), cause.until.ToNanoseconds()
        if bool(until) != ("; ended " in cause.sentence):
            yield f"its end and its sentence differ: {cause.sentence}"
        if since > (until or now):
            yield f"it begins after it has ended, or will: {cause.sentence}"
        if until and any(" quarantine add " in each or " delete policy " in each for each in cause.commands):
            yield f"it has ended, and is to be repaired: {cause.sentence}"


def _peers(claims: Claims) -> Iterator[str]:
    rows = {(text.engine(each.key), each.peer.address): each for each in claims.peers.peers}
    about = {
        (text.engine(key), peer)
        for each in claims.all_lasting
        for key in each.engines
        for peer in (*([each.peer] if each.peer else []), *each.peers)
    }
    for place in sorted(about & rows.keys()):
        if not badness(rows[place].condition):
            yield f"peer {place[1]} of engine {place[0]} has a cause, and is {condition_word(rows[place])}"
    told = " ".join(
        [
            *(each.sentence for each in claims.all_lasting),
            *(fact.fact for each in claims.all_lasting for fact in each.evidence),
        ]
    )
    for place, row in rows.items():
        if row.condition in _JUDGED and place not in about and row.peer.address not in told:
            yield f"peer {place[1]} of engine {place[0]} is {condition_word(row)}, and has no cause"


def _cells(claims: Claims) -> Iterator[str]:
    rows = {(text.engine(each.key), each.peer.address): each for each in claims.peers.peers}
    for line in claims.screen.peers.rows:
        for cell in line.cells:
            row = rows.get((cell.engine, line.address))
            if row is not None and bool(badness(row.condition)) != (
                cell.condition not in ("ok", "idle", "none")
            ):
                yield f"the cell of {line.address} is {cell.condition}, the list says {condition_word(row)}"


def _pairs(claims: Claims) -> Iterator[str]:
    about = {
        (text.engine(key), each.peer): each.kind
        for each in claims.all_lasting
        if each.kind in _OF_PAIRS
        for key in each.engines
    }
    for pair in claims.pairs.pairs:
        differ = pair.weights == admin.PAIR_WEIGHTS_DIFFER
        apart = differ or pair.compatible == admin.PAIR_COMPATIBILITY_NO
        place = (text.engine(pair.key), pair.peer.address)
        # One whose address is not known may be any that its reader has a cause about.
        told = place in about if pair.peer.address else place[0] in {engine for engine, _ in about}
        if apart and pair.HasField("peer_key") and not told:
            yield f"the pair {' and '.join(place)} does not fit ({pair.reason or 'weights'}), and has no cause"
        if not differ and about.get(place) == "weights_differ":
            yield f"the pair {' and '.join(place)} has a cause about weights, and has the same ones"


def _suspects(claims: Claims) -> Iterator[str]:
    real = [each for each in claims.suspects.suspects if not each.rehearsal]
    causes = [each for each in claims.diagnosis.causes if each.kind in _SUSPECTING]
    told = sum(each.requests for each in causes)
    if told < len(real):
        yield f"get suspects has {len(real)} answers, the causes {told}"
    wrong = sum(each.requests for each in causes if "may be wrong" in each.sentence)
    if wrong > len(real) and not claims.suspects.truncated:
        yield f"the causes have {wrong} answers that may be wrong, get suspects {len(real)}"
    facts = " ".join(fact.fact for each in causes for fact in each.evidence)
    for each in real:
        if len(real) == 1 and each.request_id and each.request_id not in facts:
            yield f"no cause names {each.request_id}"


def _engines(claims: Claims) -> Iterator[str]:
    told = " ".join(
        [
            *(each.sentence for each in claims.all_lasting),
            *(fact.fact for each in claims.all_lasting for fact in each.evidence),
        ]
    )
    for engine in claims.engines.engines:
        name = text.engine(engine.key)
        if not engine.connected and not engine.said_goodbye and name not in told:
            yield f"engine {name} is away without a goodbye, and no cause says so"
        if engine.connected and any(
            each.kind in _GONE[:2]
            and name in {text.engine(key) for key in each.engines}
            and each.sentence.endswith("is not connected")
            for each in claims.lasting
        ):
            yield f"engine {name} is connected, and a cause says that it is not"


def _stalls(claims: Claims) -> Iterator[str]:
    kinds = {(text.engine(key), each.kind) for each in claims.all_lasting for key in each.engines}
    for engine in claims.engines.engines:
        name = text.engine(engine.key)
        known = {"no_transfer_params": "no_transfer_parameters"}
        for stall in engine.stalls:
            if (name, known.get(stall.kind, stall.kind)) not in kinds:
                yield f"engine {name} has the stall {stall.kind}, and no cause of that kind"


def _doctor(claims: Claims) -> Iterator[str]:
    told = "\n".join(each.what for each in claims.findings)
    for cause in claims.lasting:
        if cause.sentence[:300] not in told and cause.kind not in (
            "paused",
            "policy_refused",
            "clock_offset",
        ):
            yield f"doctor does not say: {cause.sentence}"
    if claims.lasting and any(each.level == OK for each in claims.findings):
        yield "doctor says ok, and causes last"


def _series(claims: Claims) -> Iterator[str]:
    kinds = {labels[0] for labels in claims.series}
    if kinds != {each.kind for each in claims.lasting}:
        yield f"penstock_condition has {sorted(kinds)}, diagnose {[each.kind for each in claims.lasting]}"


def _explain(claims: Claims) -> Iterator[str]:
    for suspect in claims.suspects.suspects:
        words = claims.explained.get(suspect.request_id, "")
        for fact in suspect.evidence if words else ():
            if fact not in words:
                yield f"explain does not say of {suspect.request_id}: {fact}"
    for request in claims.failed.requests:
        words = claims.explained.get(request.request_id, "failed")
        if "failed" not in words:
            yield f"explain does not say that {request.request_id} failed: {words}"


def _bill(claims: Claims) -> Iterator[str]:
    told = sum(each.requests_failed for each in claims.diagnosis.causes)
    billed, listed = claims.bill.total.failed, len(claims.failed.requests)
    if told > billed:
        yield f"the causes have {told} requests that failed, the bill {billed}"
    if listed != billed:
        yield f"get requests has {listed} requests that failed, the bill {billed}"


def _number(claims: Claims) -> Iterator[str]:
    said = [
        claims.diagnosis.sentence,
        *claims.explained.values(),
        *(each.what for each in claims.findings),
        *(cause.sentence for cause in claims.diagnosis.causes),
        *(fact.fact for cause in claims.diagnosis.causes for fact in cause.evidence),
    ]
    for each in said:
        if _MANY_OF_ONE.search(each):
            yield f"one is spoken of as many: {each}"
