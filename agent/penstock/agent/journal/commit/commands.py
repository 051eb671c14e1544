"""What the journal's writer does inside a transaction."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from penstock.agent.errors import PenstockError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from penstock.agent.batch import BatchColumns
    from penstock.agent.journal.commit.transaction import Appended, Transaction
    from penstock.agent.model import Source

Write: TypeAlias = "Callable[[Transaction], None]"


class Command(Protocol):
    """Something to be done inside a transaction."""

    size: int

    def run(self, transaction: Transaction) -> Any:
        """Do it; a PenstockError concerns only this command, and must come before its first write."""


def probe(transaction: Transaction) -> None:
    """Write something, to find out whether the disk can be written."""
    transaction.probe(time.time_ns())


def run_command(command: Command, transaction: Transaction) -> Any:
    """Return the result of *command*, or the PenstockError that it raised."""
    try:
        return command.run(transaction)
    except PenstockError as error:
        return error


@dataclass(slots=True)
class Append:
    """Append a batch.

    Attributes:
        ahead: the future is resolved before what follows the log has the batch.

    """

    source: Source
    contents: BatchColumns
    body: bytes
    future: asyncio.Future[Appended]
    size: int
    ahead: bool = False

    def run(self, transaction: Transaction) -> Appended:
        """Append it, received now."""
        return transaction.append(self.source, self.contents.batch, self.body, time.time_ns(), self.contents)


@dataclass(slots=True)
class Open:
    """Open a source."""

    source: Source
    future: asyncio.Future[int]
    size: int = 0

    def run(self, transaction: Transaction) -> int:
        """Open it; return its watermark."""
        return transaction.open_source(self.source, time.time_ns())
