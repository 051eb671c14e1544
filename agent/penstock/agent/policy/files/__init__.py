"""Policies that follow mounted files."""

from __future__ import annotations

from penstock.agent.policy.files.file_source import read_files, scan_directory

__all__ = [
    "read_files",
    "scan_directory",
]
