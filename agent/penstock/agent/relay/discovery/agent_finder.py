"""Looks up again and again where the agents are."""

from __future__ import annotations

import asyncio
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

import structlog
from penstock.agent.errors import PenstockError
from penstock.agent.relay.discovery.agent_places import MAX_AGENTS, resolve_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from penstock.agent.relay.discovery.agent_places import AgentPlace, AgentSet

    # Raises OSError where the agents cannot be found.
    Find = Callable[[], Awaitable[Sequence[AgentPlace]]]

_log = structlog.get_logger(__name__)
_SOURCE_SECONDS = 10.0
# Of the agents that are found twice as many are named.
_MAX_NAMED = 3


class AgentFinder:
    """The agents of a list, and those that sources know; the loop's.

    Attributes:
        places: of the agents, by name.
        error: a sentence about what cannot be read, or cannot be used; empty without any.

    """

    def __init__(self, agents: AgentSet, sources: Mapping[str, Find] = MappingProxyType({})) -> None:
        """Prepare it.

        Args:
            agents: their list, and names of DNS.
            sources: what else finds agents, by name.

        """
        self._listed = agents.places
        names = {f"dns:{name}": partial(resolve_name, name) for name in agents.names}
        self._sources: dict[str, Find] = {**names, **sources}
        self._last: dict[str, Sequence[AgentPlace]] = {}
        self.places, self.error = choose(self._listed)

    @property
    def changes(self) -> bool:
        """Whether there is anything to look up."""
        return bool(self._sources)

    async def look_up(self) -> None:
        """Read all sources; never fails."""
        troubles = await asyncio.gather(*(self._read(source, read) for source, read in self._sources.items()))
        found = [*self._listed]
        for source in self._sources:
            found += self._last.get(source, ())
        self.places, unusable = choose(found)
        error = "; ".join(filter(None, [*troubles, unusable]))
        if error and error != self.error:
            _log.warning("agents cannot be looked up", reason=error)
        self.error = error

    async def _read(self, source: str, read: Find) -> str:
        """Read one; return a sentence if it cannot be read: its agents stay."""
        try:
            async with asyncio.timeout(_SOURCE_SECONDS):
                self._last[source] = await read()
        except (OSError, PenstockError) as error:
            # TimeoutError is an OSError.
            reason = str(error) or "no answer"
        except Exception as error:  # noqa: BLE001  (what comes from outside ends no relay)
            reason = f"{type(error).__name__}: {error}"
        else:
            return ""
        return f"{source} cannot be read ({reason}); its last agents stay"


def choose(found: Iterable[AgentPlace]) -> tuple[dict[str, AgentPlace], str]:
    """Return the agents to ask, by name, and a sentence about those that cannot be asked. Pure.

    Of two agents of one name the one that comes first is asked; of too many those whose names are first.
    """
    places: dict[str, AgentPlace] = {}
    twice = []
    for place in found:
        first = places.setdefault(place.name, place)
        if first.address != place.address:
            twice.append(f"{place.name} ({first.address} is asked, {place.address} is not)")
    sentences = []
    if twice:
        more = f" and {len(twice) - _MAX_NAMED} more" if len(twice) > _MAX_NAMED else ""
        sentences.append(
            f"two agents of one name: {', '.join(twice[:_MAX_NAMED])}{more}; give each a name of its own"
        )
    if len(places) > MAX_AGENTS:
        sentences.append(
            f"{len(places)} agents were found, a relay asks {MAX_AGENTS}; start one for each part"
        )
        places = dict(sorted(places.items())[:MAX_AGENTS])
    return places, "; ".join(sentences)
