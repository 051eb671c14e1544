"""Leases on the prefill side that expire unread, and a reader that comes too late."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as c
from penstock.proto.v1 import events_pb2 as e

from demo.common.client import complete
from demo.common.steps import until
from tests.support.engine.pairs import CPU_DEFAULTS
from tests.support.engine.versions import VERSION
from tests.support.kv.peers import LEASE_SECONDS

if TYPE_CHECKING:
    from tests.support.kv.bench import Bench, Prefilled
    from tests.support.kv.peers import Spare

pytestmark = [
    pytest.mark.engine,
    pytest.mark.parametrize("stack", [CPU_DEFAULTS], indirect=True, ids=["cpu"]),
]


def test_a_lease_expires_and_a_late_read_is_reported(kv: Bench, spare: Spare, unread: Prefilled) -> None:
    """Unread blocks are freed (expired); a later read may get another request's (late_read)."""
    name = unread.remote_request_id
    until(lambda: kv.events("lease_closed", name), "The lease does not end", seconds=LEASE_SECONDS + 30)
    lease = kv.event("lease_closed", name).lease_closed
    assert lease.ending == e.LEASE_ENDING_EXPIRED
    assert lease.blocks > 0
    expired = kv.event("transfer_failure", name)
    assert kv.events("transfer_failure", name) == [expired]
    assert expired.transfer_failure.mode == c.FAILURE_MODE_EXPIRED
    assert expired.transfer_failure.direction == c.DIRECTION_SEND

    before = kv.agent.metrics().value("penstock_late_reads_total", server="spare")
    kv.decode(unread)

    def told() -> bool:
        # An idle engine does not look at what others tell it.
        complete(spare.server().url, "Wake up.", max_tokens=1)
        modes = [event.transfer_failure.mode for event in kv.events("transfer_failure", name)]
        return c.FAILURE_MODE_LATE_READ in modes

    until(told, "The late read is not told")
    until(
        lambda: kv.agent.metrics().value("penstock_late_reads_total", server="spare") == before + 1,
        "penstock_late_reads_total does not count the late read",
    )
    _is_suspect(kv, name)
    # vLLM has counted both as well; an earlier one counts no late reads.
    both = ".*late read.*expired lease" if VERSION >= (0, 32) else ".*expired lease"
    agreed = rf"engine spare/0: vLLM's own counters agree: {both}"

    def doctor() -> str:
        return kv.agent.ctl("doctor").output

    until(
        lambda: re.search(agreed, doctor()),
        lambda: f"agentctl doctor does not compare the counters:\n{doctor()}",
    )
    assert "vLLM counts" not in doctor()
    assert "wrong  engine spare/0" not in doctor()
    # Other tests may have left causes enough that doctor, which names the worst, only counts the rest.
    causes = kv.admin.Diagnose(admin.DiagnoseRequest(), timeout=60).causes
    told_of = {key.server for each in causes if each.kind == "late_reads" for key in each.engines}
    assert "spare" in told_of, [each.sentence for each in causes]


def _is_suspect(kv: Bench, unread: str) -> None:
    """Check that the answer is named that was computed from the blocks of *unread*, and said to be suspect."""

    def found() -> list[dict[str, object]]:
        document = json.loads(kv.agent.ctl("get", "suspects", "-o", "json").output)
        return [each for each in document["suspects"] if each["peerRequestId"] == unread]

    until(
        lambda: found() and found()[0].get("finishReason"), "agentctl get suspects does not name the answer"
    )
    (suspect,) = found()
    assert suspect["reasons"] == ["late_read"]
    assert suspect["peerKey"] == {"server": "spare", "engine": "0"}
    assert "missing" not in suspect or not suspect["missing"]
    explained = kv.agent.ctl("explain", str(suspect["requestId"])).output
    assert f"The answer to {suspect['requestId']} is suspect" in explained
