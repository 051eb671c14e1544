"""Servers that go out of rotation by policy: what readers say of them, the rails, and the relay that leads."""

from __future__ import annotations

from penstock.agent.relay.ejections.board import EjectionBoard
from penstock.agent.relay.ejections.evidence import SeenFleet, Server, Vote, servers_of, votes_of
from penstock.agent.relay.ejections.leader import ACTIONS, EjectionLeader

__all__ = [
    "ACTIONS",
    "EjectionBoard",
    "EjectionLeader",
    "SeenFleet",
    "Server",
    "Vote",
    "servers_of",
    "votes_of",
]
