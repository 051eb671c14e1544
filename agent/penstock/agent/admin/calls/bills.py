"""``GetBill``: what failed loads, waits and recomputation cost, from the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.agent.admin.calls.events import read_in_turn, since_unix_nano
from penstock.agent.admin.lookups import EventScan, key_message, messages, selection_of, source_target
from penstock.agent.bill import (
    KINDS,
    BillAccount,
    Costs,
    bounded_lines,
    costs_message,
    price_message,
    sum_costs,
)
from penstock.agent.journal import ReadBudget
from penstock.proto import constants as c
from penstock.proto.names import NANOS
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.agent.admin.lookups import AgentContext
    from penstock.agent.bill import Charge
    from penstock.agent.journal import Reader
    from penstock.agent.model import EngineKey, PolicySource, Source
    from penstock.agent.parsing import Selection

_DEFAULT_SINCE = 86_400 * NANOS
_MAX_ENTRIES = 100_000
_READ_BYTES, _READ_SECONDS = 256 << 20, 6.0
_HASH_CHARACTERS = 12
# Which section of a policy decides, by what an engine names.
_SECTIONS: Final = {
    c.DECIDED_BY_QUARANTINE: "peerQuarantine.",
    c.DECIDED_BY_DEADLINE: "deferral.",
    c.DECIDED_BY_REFLEX: "reflexes.",
}
_LOAD_FAILURE: Final = {c.CHANNEL_KV: "kvLoadFailure.", c.CHANNEL_EC: "ecLoadFailure."}
_OBSERVED = "observed."


async def get_bill(agent: AgentContext, request: admin.GetBillRequest) -> admin.Bill:
    """Return what failed loads, waits and recomputation of the selected engines cost.

    Raises:
        ContractError: an invalid selector.

    """
    selection = selection_of(request.selector)
    since = since_unix_nano(request, agent.clock(), _DEFAULT_SINCE)

    def read(reader: Reader) -> admin.Bill:
        bill, found = _read(agent, reader, since, selection)
        lines = [line for each in found for line in each.lines()]
        bill.lines.extend(bounded_lines(lines))
        bill.total.CopyFrom(sum_costs(line.costs for line in bill.lines))
        charged = {(line.key.server, line.key.engine) for line in lines}
        for each in found:
            if (each.key.server, each.key.engine) in charged:
                price = bill.prices.add()
                price.CopyFrom(price_message(each.account.price))
                price.key.CopyFrom(key_message(each.key))
        return bill

    return await read_in_turn(agent, read)


class _EngineBill:
    """The account of one engine, and the names of the policies that its charges mean."""

    def __init__(self, agent: AgentContext, key: EngineKey) -> None:
        self.key = key
        self.account = BillAccount()
        self._agent = agent
        self._sources: dict[str, tuple[PolicySource, ...]] = {}

    def note_policy(self, source: Source, hash_: str, unix_nano: int) -> None:
        """Look up the policies behind *hash_*, once."""
        if hash_ and hash_ not in self._sources:
            self._sources[hash_] = tuple(self._agent.policies(source, hash_, unix_nano))

    def lines(self) -> Iterator[admin.BillLine]:
        """Yield a line for each peer, channel and set of policies."""
        sums: dict[tuple[int, str, tuple[str, ...], bool], Costs] = {}
        for charge, costs in self.account.charges().items():
            place = (charge.channel, charge.peer, self._policies(charge), charge.rehearsal)
            sums.setdefault(place, Costs()).add(costs)
        for (channel, peer, policies, rehearsal), costs in sums.items():
            yield admin.BillLine(
                key=key_message(self.key),
                peer=peer,
                channel=channel,  # type: ignore[arg-type]
                policies=policies,
                rehearsal=rehearsal,
                costs=costs_message(costs, self.account.price),
            )

    def _policies(self, charge: Charge) -> tuple[str, ...]:
        """Return the names of the policies that decided: those with a field of the section that did."""
        if not charge.policy_hash:
            return ()
        sources = self._sources.get(charge.policy_hash, ())
        section = _SECTIONS.get(charge.decided_by, _LOAD_FAILURE.get(charge.channel, ""))
        deciding = [each for each in sources if any(field.startswith(section) for field in each.fields)]
        if deciding:
            return tuple(sorted({each.name for each in deciding}))
        enforced = {
            each.name
            for each in sources
            if not each.fields or not all(field.startswith(_OBSERVED) for field in each.fields)
        }
        return tuple(sorted(enforced)) or (f"hash {charge.policy_hash[:_HASH_CHARACTERS]}",)


def _read(
    agent: AgentContext, reader: Reader, since: int, selection: Selection
) -> tuple[admin.Bill, list[_EngineBill]]:
    """Return the bill's frame and what each selected engine has in the log, by its newest labels."""
    allowance = ReadBudget(_READ_BYTES, _READ_SECONDS)
    rows = reader.scan(kinds=KINDS, since_unix_nano=since, limit=_MAX_ENTRIES + 1, allowance=allowance)
    scan = EventScan(reader, rows, events=_MAX_ENTRIES, allowance=allowance)
    found: dict[EngineKey, _EngineBill | None] = {}
    entries, oldest = 0, 0
    for each in scan:
        entries += 1
        oldest = each.logged.received_unix_nano
        key = each.source.key
        if key not in found:
            found[key] = _EngineBill(agent, key) if selection.matches(source_target(each.source)) else None
        bill = found[key]
        if bill is not None:
            bill.account.add(each.event)
            bill.note_policy(each.source, each.event.load_outcome.policy_hash, each.event.time_unix_nano)
    frame = admin.Bill(
        entries=entries,
        truncated=scan.cut,
        unreadable_batches=messages.clamp_unsigned(scan.unreadable, messages.MAX_UINT32),
        oldest=messages.timestamp_message(oldest if scan.cut else 0),
    )
    first = reader.batch(reader.first())
    if first is not None and first.received_unix_nano > since:
        frame.log_begins.FromNanoseconds(first.received_unix_nano)
    return frame, [bill for _, bill in sorted(found.items()) if bill is not None]
