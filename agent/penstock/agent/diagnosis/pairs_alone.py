"""What is wrong with pairs of engines, where nothing else is known of them: at a relay, which sees both ends. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.diagnosis.facts import Attribution, Facts, Window
from penstock.agent.diagnosis.messages import cause_message
from penstock.agent.diagnosis.rules import pair_causes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.proto.v1 import admin_pb2 as admin


def diagnose_pairs(pairs: Sequence[admin.Pair], now: int) -> list[admin.DiagnosedCause]:
    """Return the causes of *pairs*, of different weights and of facts that no handshake accepts; *now*: nanoseconds."""
    facts = Facts(now, Window(), Window(), pairs=pairs)
    return [cause_message(each) for each in pair_causes(facts, Attribution({}))]
