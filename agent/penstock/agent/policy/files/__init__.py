"""Policies that follow mounted files."""

from __future__ import annotations

from penstock.agent.policy.files.directory_state import look, read

__all__ = [
    "look",
    "read",
]
