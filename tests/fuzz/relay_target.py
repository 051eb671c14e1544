"""All that one agent's answer goes through at a relay until it is shown: checked, read, merged with another's, sent."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from penstock.agent.answers import read_agents_answer, read_answer
from penstock.agent.errors import ContractError, ManifestError
from penstock.agent.policy.manifest import parse_manifest
from penstock.agent.relay import merged_answers, merged_sides
from penstock.agent.relay.merged_answers import merge_bills
from penstock.agent.relay.merged_peers import add_cells, cells_request, merge_peers
from penstock.agent.relay.merged_sides import causes_between_agents
from penstock.agent.relay.policies import FleetPolicy, FoundPolicies, with_source
from penstock.agent.views.text import printable
from penstock.proto.v1 import admin_pb2 as admin

from tests.fuzz.answers import shown

if TYPE_CHECKING:
    from collections.abc import Callable

    Named = list[tuple[str, Any]]

NOW: Final = 1_750_000_000_000_000_000


def _peers(named: Named) -> admin.ListPeersResponse:
    asked = admin.ListPeersRequest(most_peers=3, most_engines=2)
    merged = merge_peers(named, asked)
    add_cells(merged, named, cells_request(merged, asked))
    return merged


def _suspects(named: Named) -> admin.ListSuspectsResponse:
    late = merged_sides.halves(named)
    merged_sides.qualify_suspects(named)
    return merged_sides.joined(named, late, named, admin.ListSuspectsRequest())


def _diagnosis(named: Named) -> admin.Diagnosis:
    request = admin.DiagnoseRequest()
    return merged_answers.diagnosis(
        named, request, [("c", "no answer")], causes_between_agents([], named, request, NOW)
    )


def _past_diagnosis(named: Named) -> admin.Diagnosis:
    return merged_answers.past_diagnosis(named, admin.DiagnoseRequest(at=named[0][1].at))


def _policies(named: Named) -> admin.ListPoliciesResponse:
    every = merged_answers.policies(named, admin.ListPoliciesRequest()).policies
    # What is at the relay's source, too: the manifest of any of them that is one.
    found: dict[str, FleetPolicy] = {}
    for each in every:
        with suppress(ManifestError):
            manifest = parse_manifest(each.manifest_json)
            found[manifest.name] = FleetPolicy(manifest, 1)
    listed = with_source(every, FoundPolicies(found, {}, dict.fromkeys(found, 1)), "nats://a:1/p")
    return admin.ListPoliciesResponse(policies=listed)


def _pairs(named: Named) -> admin.ListPairsResponse:
    merged = merged_answers.pairs(named, admin.ListPairsRequest())
    causes = causes_between_agents([("c", merged)], [], admin.DiagnoseRequest(), NOW)
    for each in causes:
        shown(each)
    return merged


MERGES: Final[dict[str, tuple[Callable[[Named], Any], ...]]] = {
    "ListEngines": (lambda named: merged_answers.engines(named, admin.ListEnginesRequest()),),
    "ListPeers": (_peers, lambda named: merge_peers(named, admin.ListPeersRequest())),
    "ListPairs": (_pairs,),
    "ListRequests": (
        lambda named: merged_answers.requests(named, admin.ListRequestsRequest(limit=3)),
        lambda named: merged_answers.requests(named, admin.ListRequestsRequest(slow=True, sort="wait")),
        lambda named: merged_answers.requests(named, admin.ListRequestsRequest(deferred=True)),
    ),
    "ListHolders": (lambda named: merged_answers.holders(named, admin.ListHoldersRequest()),),
    "ListSuspects": (_suspects,),
    "ListEvents": (lambda named: merged_answers.events(named, admin.ListEventsRequest()),),
    "ListPolicies": (_policies,),
    "ListAudit": (lambda named: merged_answers.audit(named, admin.ListAuditRequest()),),
    "ListQuarantines": (lambda named: merged_answers.quarantines(named, admin.ListQuarantinesRequest()),),
    "ListDrills": (lambda named: merged_answers.drills(named, admin.ListDrillsRequest()),),
    "ListPolicyRollouts": (lambda named: merged_answers.rollouts(named, admin.ListPolicyRolloutsRequest()),),
    "Diagnose": (_diagnosis, _past_diagnosis),
    "WhatIf": (lambda named: merged_answers.what_if(named, admin.WhatIfRequest()),),
    "GetBill": (lambda named: merge_bills(named, admin.GetBillRequest()),),
    "GetTrace": (merged_answers.trace,),
    "Explain": (lambda named: merged_answers.explanation(named, lambda _: (0.5, 0.1)),),
    "SetPaused": (lambda named: merged_answers.delivery(named, missing=[("c", "no answer")]),),
}
"""The merges of the answers to each method."""
METHODS: Final = tuple(MERGES)


def take(body: bytes) -> bool:
    """Take an answer as a relay does, its first byte is the method; returns False if it is left out."""
    if not body:
        return False
    method, answer = METHODS[body[0] % len(METHODS)], body[1:]
    for merging in MERGES[method]:
        try:
            named = [(name, read_agents_answer(method, answer)) for name in ("a", "b")]
        except ContractError as error:
            # It is part of a line on stderr.
            printable(str(error)).encode()
            return False
        merged = merging(named)
        # A caller reads what the relay sends.
        shown(read_answer(method, merged.SerializeToString()))
    return True
