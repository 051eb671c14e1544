"""What is in force for a while: fault drills, quarantines, break-glass policies. Pure."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.agent.model import BREAK_GLASS_PRIORITY
from penstock.agent.views import text
from penstock.agent.views.checks.findings import NOTE, Finding
from penstock.agent.views.orders import drill_words, until_words
from penstock.proto.v1 import events_pb2 as events

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from penstock.proto.v1 import admin_pb2 as admin

_SHOWN: Final = 5
_REASON: Final = 200
# Owners of policies: set over the wire, and of a file. Others are policy sources.
_BY_HAND: Final = "imperative"
_FILE: Final = "file:"
# Causes that are orders.
_DRILL, _HEALTHY = "drill", "healthy_peer_quarantined"
_DRILL_ID: Final = re.compile(r"drill (\S+) ")
_STATES: Final = {
    events.QUARANTINE_STATE_OPEN: "quarantined in",
    events.QUARANTINE_STATE_HALF_OPEN: "probed by",
    events.QUARANTINE_STATE_UNSPECIFIED: "quarantine ordered, not in force in",
}


class Orders(NamedTuple):
    """The operators' orders in force."""

    drills: Sequence[admin.Drill] = ()
    quarantines: Sequence[admin.Quarantine] = ()


def check_orders(
    orders: Orders,
    policies: Iterable[admin.Policy],
    now: float,
    told: Sequence[admin.DiagnosedCause] = (),
) -> Iterator[Finding]:
    """Name what is in force for a while, of each kind the first few.

    Args:
        orders: drills and quarantines.
        policies: of which those that break the glass are named.
        now: seconds since the epoch.
        told: causes of the diagnosis that last: the orders among them have findings already.

    """
    told_drills = {
        found for cause in told if cause.kind == _DRILL for found in _DRILL_ID.findall(cause.sentence)
    }
    drills = [each for each in orders.drills if each.id not in told_drills]
    yield from _shortened(list(drill_findings(drills)), "drill", "agentctl drill list")
    healthy = {cause.peer for cause in told if cause.kind == _HEALTHY}
    standing = [each for each in orders.quarantines if each.peer.address not in healthy]
    peers = list(quarantine_findings(standing, now))
    yield from _shortened(peers, "peer", "agentctl quarantine list")
    # Of a fleet's agents each may have one of the same name.
    glass = {each.name: found for each in policies if (found := break_glass_finding(each, now)) is not None}
    yield from _shortened(list(glass.values()), "policy", "agentctl get policy")


def drill_findings(drills: Iterable[admin.Drill]) -> Iterator[Finding]:
    """Name each drill."""
    for each in drills:
        what = text.one_line(drill_words(each)) + _by([each.spec.author])
        yield Finding(NOTE, f"drill {each.id}", what, f"'agentctl drill stop {each.id}' ends it")


def quarantine_findings(quarantines: Iterable[admin.Quarantine], now: float) -> Iterator[Finding]:
    """Name each peer that engines are kept from, or are to be, once."""
    by_peer: dict[str, list[admin.Quarantine]] = {}
    for each in quarantines:
        if each.state != events.QUARANTINE_STATE_CLOSED:
            by_peer.setdefault(each.peer.address, []).append(each)
    for address, rows in by_peer.items():
        advice = f"'agentctl describe peer {address}' says more, 'agentctl quarantine lift {address}' ends it"
        yield Finding(NOTE, f"peer {address}", _standing(rows, now), advice)


def break_glass_finding(policy: admin.Policy, now: float) -> Finding | None:
    """Name a break-glass policy that has not ended; None for another one."""
    spec = json.loads(policy.manifest_json)["spec"]
    ends = datetime.fromisoformat(spec["expiresAt"]).timestamp() if spec.get("expiresAt") else 0.0
    if spec.get("priority", 0) < BREAK_GLASS_PRIORITY or ends <= now:
        return None
    what = f"break-glass, ends {text.ago(int(ends * 1e9), now)}{_by([policy.author])}"
    return Finding(NOTE, f"policy {policy.name}", what, _removal(policy))


def _standing(rows: Sequence[admin.Quarantine], now: float) -> str:
    """Describe what has become of a peer's quarantine: in how many engines, until when, by whom, why."""
    counts = Counter(each.state for each in rows if each.HasField("key"))
    states = [
        f"{said} {text.count(counts[state], 'engine')}" for state, said in _STATES.items() if counts[state]
    ]
    ends = {until_words(each, now) for each in rows}
    until = f", until: {ends.pop()}" if len(ends) == 1 else ""
    reason = next((each.reason for each in rows if each.author), rows[0].reason)
    why = f": {text.one_line(reason, _REASON)}" if reason else ""
    where = ", ".join(states) or "quarantine ordered, in force in no engine"
    return where + until + _by([each.author for each in rows]) + why


def _removal(policy: admin.Policy) -> str:
    if policy.owner.startswith(_FILE):
        return f"remove it from the file {policy.owner.removeprefix(_FILE)} to end it"
    if policy.owner not in ("", _BY_HAND):
        return f"delete it at its policy source {policy.owner} to end it"
    return f"'agentctl delete policy {policy.name}' ends it"


def _by(authors: Iterable[str]) -> str:
    found = ", ".join(dict.fromkeys(filter(None, authors)))
    return f", by {text.one_line(found)}" if found else ""


def _shortened(found: list[Finding], subject: str, rest: str) -> list[Finding]:
    more = len(found) - _SHOWN
    if more <= 1:
        return found
    return [*found[:_SHOWN], Finding(NOTE, f"{subject}s", f"{more} more", f"'{rest}' lists all")]
