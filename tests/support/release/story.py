"""What an engine part says in its life, by its own code: an entry of every kind, snapshots, a policy, a goodbye."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.core.settings import Settings
from penstock.instrumentation.runtime import Runtime
from penstock.proto.v1 import admin_pb2
from penstock.proto.v1.events_pb2 import Event
from penstock.proto.v1.policy_pb2 import PolicyBody
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.fuzz.make_corpus import _KINDS, filled
from tests.support.agent.agent import wait_until
from tests.support.agent.entries import acknowledged, emit_closed, emit_failure, emit_probe, emit_transfer
from tests.support.policy.policies import document

if TYPE_CHECKING:
    from collections.abc import Iterator

_TIMES = 3
# All gauges of a snapshot; the others are the engine part's own to say.
_OWN = ("time_unix_nano", "policy", "emitter", "paused")
_GAUGES = Snapshot(**{name: value for name, value in filled(Snapshot.DESCRIPTOR).items() if name not in _OWN})
FIELDS = tuple(field.name for field in PolicyBody.DESCRIPTOR.fields)
KINDS = tuple(kind.name for kind in _KINDS)
POLICIES = (
    document(
        "frozen",
        reason="INC-42",
        kvLoadFailure={
            "action": "auto",
            "maxRecomputeTokens": 4096,
            "recomputeBudget": {"tokensPerSecond": 20_000},
            "overBudget": "fail",
        },
        ecLoadFailure={"action": "recompute", "maxRecomputeItems": 8},
        deferral={"maxStartWait": "30s", "maxTransferWait": "5s", "onTimeout": "recompute"},
        peerQuarantine={"failures": 5, "window": "30s", "duration": "60s", "maxPeersPercent": 50},
        telemetry={"traceSampleRatio": 0.5, "failureLogInterval": "5s"},
    ),
    document(
        "watched",
        mode="observe",
        kvLoadFailure={"action": "fail"},
        selector={"matchLabels": {"role": "decode"}},
    ),
)


@contextmanager
def engine_part(endpoint: str) -> Iterator[Runtime]:
    """Run the engine part of an EngineCore, without vLLM; it says goodbye at the end."""
    runtime = Runtime()
    runtime.configure(Settings(endpoint=endpoint, labels={"role": "decode", "POD_NAME": "llama-0"}))
    runtime.identify(process="engine-core", key="0", role="decode", model="tiny", vllm_version="0.32.0")
    runtime.snapshots.add("story", lambda snapshot: snapshot.MergeFrom(_GAUGES))
    runtime.start_policy(FIELDS)
    try:
        yield runtime
    finally:
        runtime.stop(60.0)


def emit_all(runtime: Runtime) -> None:
    """Emit entries of every kind, and wait until they are acknowledged."""
    for number in range(_TIMES):
        for kind in KINDS:
            body = filled(Event.DESCRIPTOR.fields_by_name[kind].message_type)
            runtime.emit_event(kind, body, component=1, request_id=f"{kind}-{number}")
        emit_failure(runtime, f"cmpl-{number}")
        emit_closed(runtime, f"cmpl-{number}")
        emit_transfer(runtime, f"cmpl-{number}")
        emit_probe(runtime, f"cmpl-{number}")
    wait_until(lambda: acknowledged(runtime), "all entries are acknowledged")


def apply_policies(admin: Any) -> Iterator[int]:
    """Apply the policies, one after the other; yield the generation of the store after each."""
    for manifest in POLICIES:
        request = admin_pb2.ApplyPolicyRequest(manifest_json=json.dumps(manifest), author="ada", all=True)
        yield int(admin.ApplyPolicy(request, timeout=60).store_generation)
