"""The policies of a fleet's source as the leader of roll-outs reads and writes them: once a look, and by compare-and-set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.errors import ConflictError
from penstock.agent.policy.rollouts import state_of
from penstock.agent.policy.store import IMPERATIVE, StoredPolicy
from penstock.agent.relay.policies.policy_writes import signed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.agent.policy.manifest import Manifest
    from penstock.agent.relay.policies.fleet_policies import FleetPolicies, FleetPolicy


class LedPolicies:
    """A copy of the policies at *source*, of the last :meth:`read`; the loop's.

    Revisions of a source do not grow by one, so that a state cannot name its own. The generation here is that of the
    state: the leader's writes count it. A state that is older than one that was read before was put back by another
    writer, and the policy is then one generation after it.
    """

    def __init__(self, source: FleetPolicies) -> None:
        """Begin without policies; :meth:`read` reads them."""
        self._source = source
        self._found: Mapping[str, FleetPolicy] = {}
        # Of each policy the newest state that was read: its roll-out's start and its generation.
        self._newest: dict[str, tuple[float, int]] = {}

    async def read(self) -> None:
        """Read all policies from the source.

        Raises:
            ImpossibleError: the source is away; the last copy stays.

        """
        self._take((await self._source.read()).policies)

    def policies(self) -> list[StoredPolicy]:
        """Return the policies of the last read, by name."""
        return [self._stored(self._found[name]) for name in sorted(self._found)]

    async def apply(self, manifest: Manifest, *, author: str, if_generation: int | None = None) -> None:
        """Write a policy in the place of the one that was read.

        Raises:
            ConflictError: it has changed at the source, and is read again.
            ImpossibleError: the source cannot be written.

        """
        present = self._found.get(manifest.name)
        if present is None or self._stored(present).generation != if_generation:
            raise ConflictError(f"policy {manifest.name!r} has changed; retry")
        try:
            written = await self._source.put(signed(manifest, author), present.revision)
        except ConflictError:
            await self.read()
            raise
        self._take({**self._found, manifest.name: written})

    def _take(self, found: Mapping[str, FleetPolicy]) -> None:
        self._found = found
        for name in self._newest.keys() - found.keys():
            del self._newest[name]
        for name, policy in found.items():
            state = state_of(policy.manifest)
            if state is not None:
                now = (state.started, state.generation)
                self._newest[name] = max(self._newest.get(name, now), now)

    def _stored(self, policy: FleetPolicy) -> StoredPolicy:
        name, state = policy.manifest.name, state_of(policy.manifest)
        newest = self._newest.get(name, (0.0, 0))
        generation = newest[1]
        if state is not None and (state.started, state.generation) != newest:
            generation = max(generation, state.generation) + 1
        return StoredPolicy(policy.manifest, generation, IMPERATIVE, "another writer", 0)
