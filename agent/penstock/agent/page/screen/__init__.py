"""The first screen, from what the admin service answers. Pure."""

from __future__ import annotations

from penstock.agent.page.screen.build import build_screen, fitted
from penstock.agent.page.screen.fleet_map import ShownMap, encoded_map, shown_map
from penstock.agent.page.screen.model import Peers, Screen, ScreenAnswers
from penstock.agent.page.screen.signals import signals_message
from penstock.agent.page.screen.tables import MOST_ENGINES, MOST_PEERS, hashes, peer_table
from penstock.agent.page.screen.verdict import diagnose_command, diagnose_request, shown_cause

__all__ = [
    "MOST_ENGINES",
    "MOST_PEERS",
    "Peers",
    "Screen",
    "ScreenAnswers",
    "ShownMap",
    "build_screen",
    "diagnose_command",
    "diagnose_request",
    "encoded_map",
    "fitted",
    "hashes",
    "peer_table",
    "shown_cause",
    "shown_map",
    "signals_message",
]
