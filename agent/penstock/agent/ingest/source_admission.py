"""Admission of a source: no other process holds its engine or its epoch, and there is room. Its only IO is a look-up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.errors import HeldError, LimitError
from penstock.agent.ingest.admission import Admission
from penstock.agent.model import AGENT_PROCESS
from penstock.agent.sources import EngineOwners
from penstock.proto.names import ENGINE_CORE

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.agent.model import Source
    from penstock.agent.sources import Ownership


class SourceAdmission:
    """Checks each source after its Hello.

    Args:
        stored: returns the source of an epoch that the journal knows, None if it does not.
        owners: which process speaks for each engine; shared with the policy feed.
        admission: bounds on what clients can make the agent hold.

    """

    def __init__(
        self,
        stored: Callable[[int], Source | None] = lambda _: None,
        owners: EngineOwners | None = None,
        admission: Admission | None = None,
    ) -> None:
        self._stored = stored
        self._owners = owners or EngineOwners()
        self.admission = admission or Admission()

    def admit(
        self, source: Source, live: Source | None, size: int, oust: Callable[[], None]
    ) -> Ownership | None:
        """Admit *source*, whose Hello came in a message of *size* bytes.

        Args:
            live: the source of the same epoch that is or was connected in this life of the agent.
            oust: ends its stream, when the engine's earlier holder comes back.

        Returns:
            What is to be given to :meth:`leave`; None if it is no EngineCore.

        Raises:
            HeldError: another process has its epoch, or holds its engine.
            LimitError: too many are here, or came lately.

        """
        known = live or self._stored(source.epoch)
        if known is not None and _is_another(known, source):
            raise HeldError(f"epoch {source.epoch} is another process's; draw a random one at the start")
        hold = None
        if source.process == ENGINE_CORE and source.key.engine:
            hold = self._owners.enter(source.key, source.credential, oust)
        try:
            self.admission.check_source(
                source.key, core=hold is not None, new_bytes=0 if known is not None else size
            )
        except LimitError:
            self.leave(hold)
            raise
        return hold

    def leave(self, hold: Ownership | None, *, goodbye: bool = False) -> None:
        """Release the engine of a source whose stream has ended, after a *goodbye* or without."""
        if hold is not None:
            self._owners.leave(hold, goodbye=goodbye)


def _is_another(known: Source, source: Source) -> bool:
    """Return whether *source* is another process than *known*, which has the same epoch and may be the agent's own."""
    return known.process == AGENT_PROCESS or known.credential not in (b"", source.credential)
