"""The policies of a fleet's source beside what the agents have of them, for lists and for the leader of roll-outs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.errors import ConflictError
from penstock.agent.model import EngineKey
from penstock.agent.parsing import Target, select
from penstock.agent.policy.manifest import parse_manifest
from penstock.agent.policy.rollouts import state_of
from penstock.agent.policy.store import IMPERATIVE, StoredPolicy
from penstock.agent.relay.policies.policy_writes import AUTHOR, signed
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import Role

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penstock.agent.policy.manifest import Manifest
    from penstock.agent.relay.policies.fleet_policies import FleetPolicies, FleetPolicy, FoundPolicies
    from penstock.proto.v1.common_pb2 import EngineKey as EngineKeyMessage

_COUNTS = ("engines_selected", "engines_in_force", "engines_paused", "engines_matched")
_MAX_UINT32 = (1 << 32) - 1


def with_source(
    agents: Iterable[admin.Policy], found: FoundPolicies, source: str, name: str = ""
) -> list[admin.Policy]:
    """Return the policies by name: those of the source first, and what agents have besides.

    Args:
        agents: of all agents, each content once.
        found: the policies at the source; a generation there is its revision.
        source: its name, the owner of those policies.
        name: return only this policy, as it is at the source if it is there; empty for all.

    """
    rows = {
        policy.manifest.name: admin.Policy(
            name=policy.manifest.name,
            generation=policy.revision,
            manifest_json=policy.manifest.canonical,
            owner=source,
            author=policy.manifest.metadata.annotations.get(AUTHOR, ""),
        )
        for policy in found.policies.values()
    }
    others = []
    for each in agents:
        row = rows.get(each.name)
        if row is None or row.manifest_json != each.manifest_json:
            others.append(each)
            continue
        for field in _COUNTS:
            setattr(row, field, min(getattr(row, field) + getattr(each, field), _MAX_UINT32))
        if each.changed.ToNanoseconds() > row.changed.ToNanoseconds():
            row.changed.CopyFrom(each.changed)
    if name:
        own = rows.get(name)
        return [own] if own is not None else [each for each in others if each.name == name]
    return sorted([*rows.values(), *others], key=lambda each: (each.name, each.owner != source))


def affected(
    engines: Iterable[admin.Engine], request: admin.ApplyPolicyRequest | admin.DeletePolicyRequest
) -> list[EngineKeyMessage]:
    """Return those of *engines* that have the policy, or that the new manifest matches."""
    engines = list(engines)
    if isinstance(request, admin.DeletePolicyRequest):
        name, matched = request.name, set()
    else:
        manifest = parse_manifest(request.manifest_json)
        selection = manifest.spec.selector.selection
        name, matched = manifest.name, {target.key for target in select(map(_target, engines), selection)}
    return [
        engine.key
        for engine in engines
        if any(policy.name == name for policy in engine.wanted_policies)
        or EngineKey(engine.key.server, engine.key.engine) in matched
    ]


def _target(engine: admin.Engine) -> Target:
    """Return what selectors see of an engine, as its agent does."""
    labels = dict(engine.labels)
    # A newer agent may know more roles.
    if engine.role and engine.role in Role.values():
        labels = {"role": Role.Name(engine.role).removeprefix("ROLE_").lower(), **labels}
    return Target(EngineKey(engine.key.server, engine.key.engine), engine.facts.model, labels)


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
