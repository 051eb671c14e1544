"""Made-up engines with peers, failures, waits and policies, for a page that shows something."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from penstock.agent.ctl.connection.client import Client
from penstock.agent.ctl.connection.contexts import ClientTls
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import (
    CHANNEL_KV,
    DEFERRAL_REASON_REMOTE_KV,
    ROLE_DECODE,
    ROLE_PREFILL,
)
from penstock.proto.v1.ingest_pb2 import Batch
from penstock.proto.v1.snapshot_pb2 import Snapshot

from tests.support.agent.batches import add_transfers, deferral_start, transfer_failure
from tests.support.agent.ingest_client import FakeEngine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.agent.agent import AgentProcess

PEERS = tuple(f"10.0.0.{number}:5600" for number in range(7, 13))
"""Peers of the first engines."""

_HOOK = {
    "name": "nixl",
    "installed": True,
    "missing_parts": [
        {"name": "handshake_queue", "lost": "time in the handshake queue", "reason": "no _executor"}
    ],
}


def manifest(name: str, action: str = "recompute", priority: int = 100) -> str:
    """Return a policy for all decode engines, as JSON."""
    return json.dumps(
        {
            "apiVersion": "penstock.dev/v1alpha1",
            "kind": "TransferPolicy",
            "metadata": {"name": name, "annotations": {"penstock.dev/reason": "the shop is open"}},
            "spec": {
                "selector": {"matchLabels": {"role": "decode"}},
                "priority": priority,
                "kvLoadFailure": {"action": action},
                "deferral": {"maxTransferWait": "5s"},
            },
        }
    )


def apply(address: str, text: str, author: str = "alice@shop") -> admin.ApplyPolicyResponse:
    """Apply a policy at an agent."""
    client = Client(address, ClientTls())
    try:
        request = admin.ApplyPolicyRequest(manifest_json=text, author=author)
        answer: admin.ApplyPolicyResponse = client.call("ApplyPolicy", request)
        return answer
    finally:
        client.close()


def snapshot(peers: tuple[str, ...], waiting: int, began: int = 0) -> Snapshot:
    """Return what an engine with *peers* reports, one of which it waits for *waiting* times, first 20 s before *began*."""
    now = time.time_ns()
    return Snapshot(
        time_unix_nano=now,
        peers=[{"peer": {"address": peer}, "connected": True} for peer in peers],
        in_flight=[
            {
                "channel": CHANNEL_KV,
                "peer": {"address": peers[0]},
                "count": 2,
                "oldest_start_time_unix_nano": now - 3 * 10**9,
            }
        ],
        deferred=[
            {
                "reason": DEFERRAL_REASON_REMOTE_KV,
                "peer": {"address": peers[0]},
                "count": waiting,
                "oldest_start_time_unix_nano": (began or now) - 20 * 10**9,
            }
        ]
        if waiting
        else [],
    )


def fill(engine: FakeEngine, number: int, minutes: int = 10) -> None:
    """Send what an engine has seen in the last *minutes*: transfers, failures of one peer, and requests that wait."""
    now = time.time_ns()
    name = engine.hello.key.engine
    for minute in range(minutes, 0, -1):
        moment = now - minute * 60 * 10**9
        failures = [
            transfer_failure(f"cmpl-{name}-{minute}-{each}", peer=PEERS[0], time_ns=moment + each * 10**9)
            for each in range(minute % 3)
        ]
        engine.publish(*failures)
    for peer in PEERS:
        batch = add_transfers(Batch(), [f"cmpl-ok-{name}-{peer}-{each}" for each in range(20)], peer=peer)
        for each in range(20):
            batch.transfers.end_time_unix_nano[each] = now - each * 10**9
        engine.publish_batch(batch)
    engine.publish(
        *(
            deferral_start(f"cmpl-wait-{name}-{each}", peer=PEERS[0], time_ns=now - (20 - each) * 10**9)
            for each in range(number)
        )
    )
    # On a busy machine the start events are seconds old by now.
    engine.snapshot(snapshot(PEERS, number, now))


@contextmanager
def sample_fleet(agent: AgentProcess, decoders: int = 3) -> Iterator[list[FakeEngine]]:
    """Connect engines to *agent*: decoders with trouble and one prefill engine; with two policies."""
    with ExitStack() as stack:
        engines = [
            stack.enter_context(
                FakeEngine(
                    agent.listen,
                    engine=str(number),
                    server="decode",
                    role=ROLE_DECODE,
                    labels={"role": "decode"},
                )
            )
            for number in range(decoders)
        ]
        prefill = stack.enter_context(
            FakeEngine(
                agent.listen, engine="0", server="prefill", role=ROLE_PREFILL, labels={"role": "prefill"}
            )
        )
        for number, engine in enumerate(engines):
            fill(engine, 4 if number == 0 else 0)
        prefill.snapshot(Snapshot(time_unix_nano=time.time_ns(), hooks=[_HOOK]))
        apply(agent.admin, manifest("decode-default"))
        yield [*engines, prefill]
