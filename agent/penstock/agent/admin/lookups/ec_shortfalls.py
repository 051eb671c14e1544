"""Fields of a policy that an engine's EC connector cannot apply. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from penstock.proto.v1.snapshot_pb2 import EngineFacts

_PRODUCER: Final = "ec_producer"

# They name a peer before they ask it.
_GATED: Final = frozenset({"ECCPUConnector", "ZmqECConnector"})

_WHY: Final[Mapping[str, str]] = {
    "ECExampleConnector": "its items lie in a directory and have no peer",
    "ECMooncakeConnector": "encoders push their items to it, and it asks none",
}
_UNKNOWN: Final = "it does not say which peer it would ask"


def ec_shortfalls(paths: Collection[str], facts: EngineFacts) -> Iterator[str]:
    """Yield a sentence for each of the fields *paths* that the EC connector in *facts* cannot apply."""
    connector = facts.ec_connector
    if not connector or facts.ec_role == _PRODUCER or connector in _GATED:
        return
    if any(path.startswith("peerQuarantine.") for path in paths):
        yield (
            f"spec.peerQuarantine keeps {connector} from no encoder: {_WHY.get(connector, _UNKNOWN)}; "
            f"KV loads are quarantined as usual"
        )
