"""Answers to what a click asks for, and writes."""

from __future__ import annotations

from penstock.agent.page.details.arguments import json_object
from penstock.agent.page.details.questions import ask_detail
from penstock.agent.page.details.writes import WRITES

__all__ = ["WRITES", "ask_detail", "json_object"]
