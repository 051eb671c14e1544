"""Policies from files: reading them, and following them as they change."""

from __future__ import annotations

from penstock.agent.policy.files.file_source import FileSource

__all__ = ["FileSource"]
