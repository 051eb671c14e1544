"""The first screen, from what the admin service answers. Pure."""

from __future__ import annotations

from penstock.agent.page.screen.answers import Answers
from penstock.agent.page.screen.build import build_screen, fitted
from penstock.agent.page.screen.model import Screen
from penstock.agent.page.screen.policy import hashes

__all__ = ["Answers", "Screen", "build_screen", "fitted", "hashes"]
