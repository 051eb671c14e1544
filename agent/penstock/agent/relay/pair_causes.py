"""What is wrong between engines of two agents: neither agent knows the other end. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penstock.agent.diagnosis import diagnose_pairs
from penstock.agent.pairs import versions_apart
from penstock.agent.relay import merge
from penstock.agent.relay.engine_names import agent_of
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Sequence

# What an agent says of a peer that is a pair's other end: then it has seen it itself.
_SEEN: Final = frozenset({"incompatible_pair", "incompatible_peer", "weights_differ"})


def causes_between_agents(
    pairs: Sequence[tuple[str, Any]],
    diagnoses: Sequence[tuple[str, Any]],
    request: admin.DiagnoseRequest,
    now: int,
) -> list[admin.DiagnosedCause]:
    """Return the causes of pairs whose two ends are of two agents; none of an earlier moment, or of labels and models.

    Args:
        pairs: the agents' ``ListPairs``, by name; their keys become those of the fleet.
        diagnoses: the agents' ``Diagnose``, by name.
        request: what was asked.
        now: nanoseconds.

    """
    asked = request.selector
    if request.HasField("at") or asked.labels or asked.models:
        return []
    wanted = {(key.server, key.engine) for key in asked.engines}
    seen = {
        cause.peer
        for _, each in diagnoses
        for whole in each.causes
        for cause in (whole, *whole.effects)
        if cause.kind in _SEEN
    }
    found = [
        pair
        for pair in merge.pairs(pairs, admin.ListPairsRequest()).pairs
        if pair.HasField("peer_key")
        and agent_of(pair.key) != agent_of(pair.peer_key)
        and (not (pair.peer.address and pair.peer.address in seen) or versions_apart(pair))
        and (not wanted or {(key.server, key.engine) for key in (pair.key, pair.peer_key)} & wanted)
    ]
    causes = diagnose_pairs(found, now)
    for cause in causes:
        untold = [each for each in cause.effects if not each.peer or each.peer not in seen]
        del cause.effects[:]
        cause.effects.extend(untold)
    return causes
