"""What is in force for a while: fault drills, quarantines, break-glass policies. Pure."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING

from penstock.agent.ctl.diagnosis.findings import NOTE, Finding
from penstock.agent.ctl.render import text as words
from penstock.agent.ctl.render.order_rows import drill_words, until_words
from penstock.agent.policy.manifest import BREAK_GLASS_PRIORITY
from penstock.proto.v1 import events_pb2 as events

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from penstock.agent.ctl.diagnosis.load_checks import Orders
    from penstock.proto.v1 import admin_pb2 as admin


def check_orders(orders: Orders, policies: Iterable[admin.Policy], now: float) -> Iterator[Finding]:
    """Name all that is in force for a while; *now*: seconds since the epoch."""
    yield from drill_findings(orders.drills)
    yield from quarantine_findings(orders.quarantines, now)
    yield from (found for each in policies if (found := break_glass_finding(each, now)) is not None)


def drill_findings(drills: Iterable[admin.Drill]) -> Iterator[Finding]:
    """Name each drill."""
    for each in drills:
        what = drill_words(each) + _by(each.spec.author)
        yield Finding(NOTE, f"drill {each.id}", what, f"'agentctl drill stop {each.id}' ends it")


def quarantine_findings(quarantines: Iterable[admin.Quarantine], now: float) -> Iterator[Finding]:
    """Name each peer that engines are kept from, once."""
    by_peer: dict[str, list[admin.Quarantine]] = {}
    for each in quarantines:
        if each.state != events.QUARANTINE_STATE_CLOSED:
            by_peer.setdefault(each.peer.address, []).append(each)
    for address, orders in by_peer.items():
        first = orders[0]
        reason = f": {first.reason}" if first.reason else ""
        engines = words.count(len(orders), "engine")
        yield Finding(
            NOTE,
            f"peer {address}",
            f"quarantined in {engines}, until {until_words(first, now)}{_by(first.author)}{reason}",
            f"'agentctl describe peer {address}' says more, 'agentctl quarantine lift {address}' ends it",
        )


def break_glass_finding(policy: admin.Policy, now: float) -> Finding | None:
    """Name a break-glass policy that has not ended; None for another one."""
    spec = json.loads(policy.manifest_json)["spec"]
    ends = datetime.fromisoformat(spec["expiresAt"]).timestamp() if spec.get("expiresAt") else 0.0
    if spec.get("priority", 0) < BREAK_GLASS_PRIORITY or ends <= now:
        return None
    what = f"break-glass, ends {words.ago(int(ends * 1e9), now)}{_by(policy.author)}"
    return Finding(NOTE, f"policy {policy.name}", what, f"'agentctl delete policy {policy.name}' ends it")


def _by(author: str) -> str:
    return f", by {author}" if author else ""
