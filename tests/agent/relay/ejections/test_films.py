"""No server of a recorded incident is accused that is well, even where one reader is enough."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest
from penstock.agent.evidence.served import BundleServer
from penstock.agent.relay.ejections import servers_of, votes_of
from penstock.agent.views.router_feed import FeedAnswers, readings
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.admin_pb2_grpc import AdminStub

from tests.support.incidents.films import FILMS, PHASES, RECORDED

if TYPE_CHECKING:
    from penstock.agent.relay.ejections import Server, Vote

# A healthy server that fails the loads of old references, and one that stays while another is killed.
_SHORT = {("stale-reference", "minute"), ("pod-killed", "minute")}
_RECORDED = [
    pytest.param(film, phase, id=f"{film}-{phase}", marks=[] if (film, phase) in _SHORT else pytest.mark.long)
    for film in FILMS
    for phase in PHASES
]


def _said(film: str, phase: str) -> tuple[list[Server], dict[str, list[Vote]]]:
    """Return the servers of a film, each as a pod of its own, and the votes on them."""
    server = BundleServer(RECORDED / film / f"{phase}.bundle")
    try:
        with grpc.insecure_channel(server.address) as channel:
            stub = AdminStub(channel)
            engines = stub.ListEngines(admin.ListEnginesRequest(without_counters=True))
            peers = stub.ListPeers(admin.ListPeersRequest())
            quarantines = stub.ListQuarantines(admin.ListQuarantinesRequest())
    finally:
        server.close()
    # They ran on one machine: by loopback addresses, which mean nothing in another pod.
    for facts in [each.facts for each in engines.engines]:
        facts.side_channel = facts.side_channel.replace("127.0.0.1", "10.0.0.1")
    for peer in [each.peer for each in peers.peers]:
        peer.address = peer.address.replace("127.0.0.1", "10.0.0.1")
    servers = servers_of(engines.engines)
    return servers, votes_of(readings(FeedAnswers(peers, engines, quarantines)), servers, ())


@pytest.mark.parametrize(("film", "phase"), _RECORDED)
def test_no_server_that_is_well_is_accused(film: str, phase: str) -> None:
    """Of those that are sick none is connected any more; what a router, a policy or a lease does is no server's fault."""
    servers, votes = _said(film, phase)
    assert [(name, vote) for name, cast in votes.items() for vote in cast if vote.is_bad] == []
    if (film, phase) in _SHORT:
        assert any(each.addresses for each in servers)
        assert any(votes.values())
