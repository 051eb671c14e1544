"""The providers of the snapshot that the exporter sends once a second."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from penstock.instrumentation.core import guard

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.proto.v1.snapshot_pb2 import Snapshot

    Provider: TypeAlias = Callable[[Snapshot], None]


class Snapshots:
    """Providers by name.

    A provider is called on the exporter's thread with the snapshot to which it adds its
    part; it must only read the engine's state, and must not wait.
    """

    def __init__(self) -> None:
        self._providers: dict[str, Provider] = {}

    def add(self, name: str, provider: Provider) -> None:
        """Add *provider*, replacing the one of that name."""
        self._providers[name] = provider

    def remove(self, name: str) -> None:
        """Remove the provider of that name, if there is one."""
        self._providers.pop(name, None)

    def collect(self, snapshot: Snapshot) -> None:
        """Call every provider; one that raises is counted and the rest go on."""
        for name, provider in list(self._providers.items()):
            with guard(f"snapshot.{name}"):
                provider(snapshot)

    def reset(self) -> None:
        """Remove all providers: for a child after a fork, whose parent reports them."""
        self._providers.clear()
