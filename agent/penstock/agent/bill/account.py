"""The bill of one engine, from its events in any order.

What belongs to one request is joined by its id: a wait that was in vain and the time of recomputation are charged to
what was decided about its failed load; a failure and a wait that another peer's trouble caused are charged to that peer.
What has no counterpart among the events is charged to the peer alone, so that no cost is lost or counted twice.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent.bill.costs import Charge, Costs, Price
from penstock.proto import constants as c
from penstock.proto.deferral_channels import WAITED_CHANNELS
from penstock.proto.v1.common_pb2 import DEFERRAL_ENDING_ENGINE_LOST
from penstock.rules import Trigger, trigger_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.proto.v1.events_pb2 import DeferralEnd, Event, LoadOutcome, RequestClosed, TransferDelayed

KINDS: Final = ("load_outcome", "deferral_end", "request_closed", "transfer_delayed", "transfer_failure")
"""The kinds of events that a bill reads."""

UNKNOWN: Final = "unknown"
_POLICY: Final = frozenset(
    {
        c.DECIDED_BY_POLICY,
        c.DECIDED_BY_QUARANTINE,
        c.DECIDED_BY_BUDGET,
        c.DECIDED_BY_DEADLINE,
        c.DECIDED_BY_REFLEX,
    }
)
# Of one request and channel: more at a time are of a client that reuses its ids.
_MAX_JOINED: Final = 64


class _Decision(NamedTuple):
    at_ns: int
    charge: Charge
    collateral: bool
    recomputed: bool
    costs: Costs
    unwaited: bool


class _ChargedWait(NamedTuple):
    at_ns: int
    charge: Charge
    nano: int
    ready: bool

    def ended_by(self, decision: _Decision) -> bool:
        """Whether the failure that was decided about may have ended it: a wait whose load failed ends as ready, too."""
        if decision.unwaited or self.at_ns - self.nano > decision.at_ns:
            return False
        # A request whose blocks another load has spoiled need not have waited itself.
        return not decision.collateral or self.at_ns >= decision.at_ns


class _Delay(NamedTuple):
    peer: str
    caused_by: str
    nano: int


class _Recompute(NamedTuple):
    at_ns: int
    charge: Charge
    nano: int


class BillAccount:
    """Collects the events of one engine.

    Attributes:
        price: of a prompt token in this engine.

    """

    def __init__(self) -> None:
        self.price = Price()
        self._plain: defaultdict[Charge, Costs] = defaultdict(Costs)
        self._decisions: defaultdict[tuple[str, int], list[_Decision]] = defaultdict(list)
        self._waits: defaultdict[tuple[str, int], list[_ChargedWait]] = defaultdict(list)
        self._delays: defaultdict[str, list[_Delay]] = defaultdict(list)
        self._recomputes: list[tuple[str, _Recompute]] = []
        self._culprits: dict[tuple[str, int], str] = {}

    def add(self, event: Event) -> None:
        """Add an event of :data:`KINDS`; others are ignored."""
        match event.WhichOneof("body"):
            case "load_outcome":
                self._add_outcome(event, event.load_outcome)
            case "deferral_end":
                self._add_wait(event, event.deferral_end)
            case "request_closed":
                self._add_closed(event, event.request_closed)
            case "transfer_delayed":
                self._add_delay(event, event.transfer_delayed)
            case "transfer_failure":
                body = event.transfer_failure
                if body.mode == c.FAILURE_MODE_COLLATERAL and body.caused_by_peer.address:
                    self._culprits[event.request_id, body.channel] = body.caused_by_peer.address

    def charges(self) -> dict[Charge, Costs]:
        """Return the costs of the events so far, by what each is charged to."""
        found: defaultdict[Charge, Costs] = defaultdict(Costs)
        for charge, costs in self._plain.items():
            found[charge].add(costs)
        for place, decisions in self._decisions.items():
            for each in decisions:
                found[self._charge(place, each)].add(each.costs)
        self._charge_waits(found)
        for request, recompute in self._recomputes:
            found[self._recompute_charge(request, recompute)].add(Costs(recompute_ns=recompute.nano))
        return {charge: costs for charge, costs in found.items() if costs != _NOTHING}

    def _charge_waits(self, found: defaultdict[Charge, Costs]) -> None:
        delays = {request: list(each) for request, each in self._delays.items()}
        for place, waits in self._waits.items():
            left = sorted(waits)
            for decision in sorted(self._decisions.get(place, ()), key=lambda each: each.at_ns):
                wait = next((each for each in reversed(left) if each.ended_by(decision)), None)
                if wait is not None:
                    left.remove(wait)
                    found[self._charge(place, decision)].add(_waited(wait.nano, ready=False))
            for wait in left:
                for charge, costs in _shares(wait, delays.get(place[0], [])):
                    found[charge].add(costs)

    def _recompute_charge(self, request: str, recompute: _Recompute) -> Charge:
        """Return what the time of recomputation is charged to: what the recomputed load nearest to it is."""
        decided = [
            (place, each)
            for place in ((request, c.CHANNEL_KV), (request, c.CHANNEL_EC))
            for each in self._decisions.get(place, ())
            if each.recomputed
        ]
        if not decided:
            return recompute.charge
        return self._charge(*min(decided, key=lambda item: abs(item[1].at_ns - recompute.at_ns)))

    def _add_outcome(self, event: Event, body: LoadOutcome) -> None:
        recomputed = body.outcome == c.OUTCOME_RECOMPUTED
        if not recomputed and body.outcome != c.OUTCOME_FAILED:
            return
        by_policy = body.decided_by in _POLICY
        charge = Charge(
            body.channel,
            body.peer.address or UNKNOWN,
            body.policy_hash if by_policy else "",
            body.decided_by,
            event.rehearsal,
        )
        costs = Costs(
            recomputed=int(recomputed),
            failed=int(not recomputed),
            tokens_recomputed=body.tokens_recomputed if recomputed else 0,
            items_recomputed=body.items_recomputed if recomputed else 0,
            tokens_lost=0 if recomputed else body.tokens_recomputed,
        )
        place = (event.request_id, body.channel)
        collateral = body.mode == c.FAILURE_MODE_COLLATERAL
        if not event.request_id or len(self._decisions[place]) >= _MAX_JOINED:
            self._plain[charge].add(costs)
        else:
            self._decisions[place].append(
                _Decision(event.time_unix_nano, charge, collateral, recomputed, costs, _is_unwaited(body))
            )

    def _add_wait(self, event: Event, body: DeferralEnd) -> None:
        channel = WAITED_CHANNELS.get(body.reason)
        start = body.start_time_unix_nano
        if channel is None or not start or body.ending == DEFERRAL_ENDING_ENGINE_LOST:
            return
        charge = Charge(channel, body.peer.address or UNKNOWN, rehearsal=event.rehearsal)
        ready = body.ending == c.DEFERRAL_ENDING_READY
        wait = _ChargedWait(event.time_unix_nano, charge, max(0, event.time_unix_nano - start), ready)
        place = (event.request_id, channel)
        if not event.request_id or len(self._waits[place]) >= _MAX_JOINED:
            self._plain[charge].add(_waited(wait.nano, ready=ready))
        else:
            self._waits[place].append(wait)

    def _add_delay(self, event: Event, body: TransferDelayed) -> None:
        held = self._delays[event.request_id]
        if event.request_id and body.caused_by_peer.address and len(held) < _MAX_JOINED:
            held.append(_Delay(body.peer.address, body.caused_by_peer.address, body.delay_nano))

    def _add_closed(self, event: Event, body: RequestClosed) -> None:
        gates = body.gates
        charge = Charge(c.CHANNEL_KV, body.peer.address or UNKNOWN, rehearsal=event.rehearsal)
        if body.unloaded_tokens:
            self._plain[charge].add(Costs(tokens_unloaded=body.unloaded_tokens))
        if gates.recompute_nano:
            recompute = _Recompute(event.time_unix_nano, charge, gates.recompute_nano)
            self._recomputes.append((event.request_id, recompute))
            return
        computed = body.prompt_tokens - body.local_cached_tokens - body.external_cached_tokens
        whole = body.first_token_time_unix_nano and not body.preemptions and not event.rehearsal
        # A step for the last token of a loaded prompt takes as long as one for many: it is no measure of a token.
        if whole and 2 * computed >= body.prompt_tokens > 0 and gates.own_prefill_nano:
            self.price.requests += 1
            self.price.tokens += computed
            self.price.prefill_ns += gates.own_prefill_nano

    def _charge(self, place: tuple[str, int], decision: _Decision) -> Charge:
        culprit = self._culprits.get(place) if decision.collateral else None
        return decision.charge if culprit is None else decision.charge._replace(peer=culprit)


def _is_unwaited(body: LoadOutcome) -> bool:
    """Return whether the load was not begun: nothing was waited for."""
    return body.decided_by == c.DECIDED_BY_QUARANTINE or trigger_of(body.reason) is Trigger.SLOW_PEER


def _shares(wait: _ChargedWait, delays: list[_Delay]) -> Sequence[tuple[Charge, Costs]]:
    """Return what a wait cost, by charge; the delays that explain parts of it are taken out of *delays*."""
    found, left = [], wait.nano
    for delay in delays[:]:
        if delay.peer == wait.charge.peer != delay.caused_by and left:
            delays.remove(delay)
            part = min(left, delay.nano)
            left -= part
            # The wait itself stays that of its peer.
            behind = Costs(waited_ns=part) if wait.ready else Costs(waited_in_vain_ns=part)
            found.append((wait.charge._replace(peer=delay.caused_by), behind))
    return [*found, (wait.charge, _waited(left, ready=wait.ready))]


def _waited(nano: int, *, ready: bool) -> Costs:
    if ready:
        return Costs(waits=1, waited_ns=nano)
    return Costs(waits_in_vain=1, waited_in_vain_ns=nano)


_NOTHING: Final = Costs()
