"""Whether an engine can be ended, by what it reports."""

from __future__ import annotations

from typing import Any

import pytest
from penstock.agent.views.drain import SILENT_SECONDS, drain_states, last_report
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common
from penstock.proto.v1 import snapshot_pb2 as snapshots

NOW = 1_000.0
NANOS = 10**9
PREFILL = "10.0.0.7:5600"


def engine(
    server: str, *, seen: float = NOW, connected: bool = True, queue: bool = True, **fields: Any
) -> admin.Engine:
    """Return an engine with a scheduler that reported at *seen*."""
    core = admin.Source(hello={"process": "engine-core", "pid": 1}, connected=connected)
    core.last_seen.FromNanoseconds(int(seen * NANOS))
    found = admin.Engine(key={"server": server, "engine": "0"}, connected=connected, sources=[core], **fields)
    found.last_seen.CopyFrom(core.last_seen)
    if queue and not found.HasField("queue"):
        found.queue.SetInParent()
    return found


def held(
    holder: snapshots.BlockHolder, requests: int, age: float, server: str = "prefill"
) -> admin.HolderSummary:
    """Return blocks that are held since *age* seconds."""
    found = admin.HolderSummary(
        key={"server": server, "engine": "0"}, holder=holder, requests=requests, blocks=9
    )
    found.oldest.FromNanoseconds(int((NOW - age) * NANOS))
    return found


def sentence(
    subject: admin.Engine, *others: admin.Engine, holders: tuple[admin.HolderSummary, ...] = ()
) -> str:
    """Return what is said of *subject*."""
    (state,) = drain_states(
        [subject], holders, [subject, *others], lambda each: NOW - last_report(each) / NANOS
    )
    assert state.drained == state.sentence(NOW).endswith(" is drained")
    return state.sentence(NOW)


PREFILLS: dict[str, Any] = {"role": common.ROLE_PREFILL, "facts": {"side_channel": PREFILL}}
WAITS = {"peer": {"address": PREFILL}, "count": 1}
NOBODY = "that no engine known here waits for"
LEASES = held(snapshots.BLOCK_HOLDER_LEASE, 2, 5)


@pytest.mark.parametrize(
    ("subject", "others", "holders", "said"),
    [
        (engine("prefill", **PREFILLS), (), (), "engine prefill/0 is drained"),
        (
            engine("prefill", **PREFILLS),
            (engine("decode", deferred=[WAITS]), engine("other", deferred=[{"peer": {"address": "10.0.0.8:1"}}])),
            (LEASES,),
            "engine prefill/0 is not drained: 2 unread leases that decode/0 waits for, the oldest since 5s ago",
        ),
        (
            engine("prefill", **PREFILLS),
            tuple(engine(f"d{n}", in_flight=[WAITS]) for n in range(5)),
            (held(snapshots.BLOCK_HOLDER_LEASE, 1, 90), held(snapshots.BLOCK_HOLDER_LEASE, 7, 1, "decode")),
            "engine prefill/0 is not drained: 1 unread lease that d0/0, d1/0, d2/0 and 2 more wait for, the oldest since 90s ago",
        ),
        (
            engine("prefill", **PREFILLS),
            (),
            (LEASES, held(snapshots.BLOCK_HOLDER_SAVE, 1, 2), held(snapshots.BLOCK_HOLDER_PINNED, 1, 2)),
            f"engine prefill/0 is not drained: 2 unread leases {NOBODY}, the oldest since 5s ago; 1 unfinished save, the oldest since 2s ago",
        ),
        (
            engine("decode", role=common.ROLE_DECODE,
                   in_flight=[{"channel": common.CHANNEL_KV, "count": 3, "peer": {"address": PREFILL}}]),
            (), (),
            f"engine decode/0 is not drained: 3 KV transfers with {PREFILL}",
        ),
        # A decode engine's requests are its clients' and vLLM's business, those of others become leases.
        (
            engine("decode", role=common.ROLE_DECODE, queue=False), (), (),
            "engine decode/0: what it holds is not known; its scheduler does not report its queue",
        ),
        (
            engine("prefill", seen=NOW - SILENT_SECONDS - 2, **PREFILLS), (), (),
            "engine prefill/0: what it holds is not known; its scheduler has not reported for 7s",
        ),
        (
            engine("prefill", connected=False, **PREFILLS), (), (LEASES,),
            "engine prefill/0: what it holds is not known; its scheduler is not connected",
        ),
        (engine("prefill", connected=False, said_goodbye=True, **PREFILLS), (), (), "engine prefill/0 is drained"),
    ],
    ids=["idle", "leases", "many readers", "nobody waits", "loads", "old engine", "silent", "gone", "ended"],
)  # fmt: skip
def test_what_is_said(
    subject: admin.Engine,
    others: tuple[admin.Engine, ...],
    holders: tuple[admin.HolderSummary, ...],
    said: str,
) -> None:
    """What others need is named with who waits and since when; what is not known is never called drained."""
    assert sentence(subject, *others, holders=holders) == said


@pytest.mark.parametrize(
    ("role", "drained"),
    [(common.ROLE_PREFILL, False), (common.ROLE_BOTH, False), (common.ROLE_UNSPECIFIED, False),
     (common.ROLE_ENCODER, False), (common.ROLE_DECODE, True)],
)  # fmt: skip
def test_requests_that_become_leases_count(role: int, drained: bool) -> None:
    """A request in the scheduler of an engine that gives its KV away is one that another waits for soon."""
    subject = engine("any", role=role)
    subject.queue.running = 2
    subject.queue.waiting.add(count=1, oldest_start_time_unix_nano=int((NOW - 4) * NANOS))
    said = sentence(subject)
    assert said == (
        "engine any/0 is drained"
        if drained
        else "engine any/0 is not drained: 3 requests in its scheduler, the oldest since 4s ago"
    )
