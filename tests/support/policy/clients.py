"""Policy clients and appliers of a runtime, with a clock of the test's."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from penstock.instrumentation.policy.applier import PolicyApplier
from penstock.instrumentation.policy.client import PolicyClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from queue import SimpleQueue

    from penstock.instrumentation.core import Settings
    from penstock.instrumentation.runtime import Runtime
    from penstock.instrumentation.transport import Message, Stream
    from penstock.proto.v1.policy_pb2 import Push


def make_applier(
    runtime: Runtime,
    fields: Iterable[str],
    clock: Callable[[], float] = time.monotonic,
    *,
    faults_allowed: bool = False,
) -> PolicyApplier:
    """Return an applier of *runtime*'s policy, whose schedules run down by *clock*."""
    return PolicyApplier(
        runtime.session,
        runtime.policy,
        runtime.emit_event,
        fields,
        faults_allowed=faults_allowed,
        clock=clock,
    )


def make_client(
    runtime: Runtime,
    settings: Settings,
    fields: Iterable[str],
    clock: Callable[[], float] = time.monotonic,
    connect: Callable[[str, SimpleQueue[Message]], Stream[Push]] | None = None,
) -> PolicyClient:
    """Return a client of *runtime* as its ``start_policy`` makes it; *connect* opens its streams."""
    applier = make_applier(runtime, fields, clock, faults_allowed=settings.allow_faults)
    return PolicyClient(runtime.session, applier, settings, connect)
