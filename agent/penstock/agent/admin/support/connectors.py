"""What a policy asks of an engine that its KV connector cannot do, by the engine's own facts. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from penstock.proto.v1.snapshot_pb2 import EngineFacts

_NIXL: Final = frozenset({"NixlConnector", "NixlPullConnector", "NixlPushConnector"})

# Its requests always wait for their loads, so none has run on blocks that fail.
_ALWAYS_WAIT: Final = _NIXL | {"MooncakeConnector"}

# They have a NIXL child or not; the facts do not tell.
_PERHAPS: Final = "MultiConnector"

_DEADLINES: Final = ("deferral.maxStartWait", "deferral.maxTransferWait")


def shortfalls(paths: Collection[str], action: str, facts: EngineFacts) -> Iterator[str]:
    """Yield a sentence for each thing that an engine will not do of what a policy sets.

    Args:
        paths: the fields that it sets, ``kvLoadFailure.action``.
        action: ``kvLoadFailure.action`` that holds with it; empty for none.
        facts: of the engine.

    """
    connector = facts.kv_connector
    if not connector:
        return
    saves = facts.kv_role in {"kv_both", "kv_producer"} or connector == _PERHAPS
    recomputes = "kvLoadFailure.action" in paths and action in {"recompute", "auto"}
    if recomputes and saves and connector not in _ALWAYS_WAIT:
        yield (
            f"{connector} may save in the step that loads ({facts.kv_role}): where a request has run on a load that failed, it fails "
            f"and is not recomputed; loads that requests wait for are"
        )
    deadlines = [path for path in _DEADLINES if path in paths]
    if deadlines and connector not in _NIXL:
        those = (
            "loads of its children that are not NIXL's" if connector == _PERHAPS else f"loads of {connector}"
        )
        yield f"spec.{deadlines[0]} ends no {those}: they cannot be given up, and last until the connector itself ends them"
