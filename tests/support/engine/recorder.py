"""A runtime that keeps what hooks emit, as the wire's own messages, instead of sending it."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core.guard import guard
from penstock.instrumentation.core.session import Identity
from penstock.instrumentation.core.settings import Settings
from penstock.instrumentation.orders import NO_ORDERS
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.telemetry.records import PROBE_COLUMNS, TRANSFER_COLUMNS
from penstock.proto.v1.events_pb2 import Event
from penstock.proto.v1.snapshot_pb2 import Snapshot
from penstock.rules.policy import (
    NO_POLICY,
    Action,
    Deferral,
    EcLoadFailure,
    KvLoadFailure,
    PeerQuarantine,
    Policy,
    PolicyBody,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest


@dataclass
class Recorder:
    """What was emitted so far; a field that the wire does not know fails the test where it is emitted."""

    events: list[Event] = field(default_factory=list)
    transfers: list[dict[str, Any]] = field(default_factory=list)
    probes: list[dict[str, Any]] = field(default_factory=list)

    def emit_event(
        self,
        kind: str,
        fields: dict[str, Any],
        *,
        component: Any,
        rank: int = 0,
        request_id: str = "",
        rehearsal: bool = False,
        time_ns: int | None = None,
    ) -> None:
        """Take an event, as the runtime does."""
        body = {kind: fields}
        self.events.append(
            Event(
                component=component,
                rank=rank,
                request_id=request_id,
                rehearsal=rehearsal,
                time_unix_nano=time_ns or 0,
                **body,
            )
        )

    def emit_transfer(self, *values: Any) -> None:
        """Take a sample, as the runtime does."""
        self.transfers.append(dict(zip(TRANSFER_COLUMNS, values, strict=True)))

    def emit_probe(self, *values: Any) -> None:
        """Take a probe, as the runtime does."""
        self.probes.append(dict(zip(PROBE_COLUMNS, values, strict=True)))

    def take(self, kind: str, request_id: str | None = None) -> list[Any]:
        """Return the bodies of the events of that kind (of one request)."""
        return [
            getattr(event, kind)
            for event in self.events
            if event.WhichOneof("body") == kind and request_id in {None, event.request_id}
        ]

    def kinds(self) -> list[str]:
        """Return the kinds of all events, in order."""
        return [str(event.WhichOneof("body")) for event in self.events]

    def snapshot(self) -> Snapshot:
        """Return what the providers contribute now."""
        snapshot = Snapshot()
        runtime.snapshots.collect(snapshot)
        return snapshot


def policy(
    action: str = "",
    observed: str = "",
    *,
    deferral: Deferral | None = None,
    quarantine: PeerQuarantine | None = None,
    ec: EcLoadFailure | None = None,
    **rule: Any,
) -> Policy:
    """Return a policy whose ``kvLoadFailure.action`` is *action* (empty: it says nothing), with the other fields in *rule*."""

    def section(word: str) -> KvLoadFailure | None:
        return KvLoadFailure(action=Action(word), **rule) if word else None

    return Policy(
        kv_load_failure=section(action),
        ec_load_failure=ec,
        deferral=deferral,
        peer_quarantine=quarantine,
        hash=f"hash-{action}",
        observed=PolicyBody(kv_load_failure=section(observed)) if observed else None,
    )


@contextmanager
def recording(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """Make the process's runtime active and let it tell a recorder; the guard lets errors through."""
    recorder, before = Recorder(), runtime.settings
    monkeypatch.setattr(guard, "raising", True)
    monkeypatch.setattr(runtime, "emit_event", recorder.emit_event)
    monkeypatch.setattr(runtime, "emit_transfer", recorder.emit_transfer)
    monkeypatch.setattr(runtime, "emit_probe", recorder.emit_probe)
    monkeypatch.setattr(runtime, "start", lambda: None)
    monkeypatch.setattr(runtime, "start_policy", lambda _fields: None)
    monkeypatch.setattr(runtime.session, "identity", Identity())
    monkeypatch.setattr(runtime.snapshots, "_providers", dict(runtime.snapshots._providers))
    runtime.configure(Settings(endpoint="unix:///nowhere/ingest.sock"))
    try:
        yield recorder
    finally:
        runtime.configure(before)
        runtime.policy.swap(NO_POLICY, 1.0, NO_ORDERS)
