"""What is wrong with policy files."""

from __future__ import annotations

from penstock.agent.errors import PenstockError


class FilesError(PenstockError):
    """The files are refused, as a whole; the sentence names file, line and field."""
