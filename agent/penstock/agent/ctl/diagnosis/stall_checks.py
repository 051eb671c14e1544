"""What should go on in an engine and does not, with the next command. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.agent.ctl.diagnosis.findings import WRONG, Finding
from penstock.agent.ctl.render import text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.proto.v1 import admin_pb2 as admin

# By the kind of a stall; {engine} is its name.
_STACKS: Final = "agentctl debug stacks {engine} shows where it stands"
_ADVICE: Final = {
    "load_not_started": "the router's kv_transfer_params may be incomplete or for another connector: search the engine's log "
    "for 'KVTransferParams'; agentctl get requests --deferred names the requests",
    "load_missing": "compare the connector of this engine with what the router sends (agentctl describe engine {engine}); "
    "agentctl get requests {engine} names the requests",
    "no_transfer_params": "the router sends requests here without prefill: check its configuration of prefill and decode "
    "pods, and whether it knows this engine's role",
    "rebalance_overdue": "one rank may have left EPLB's collectives: compare the ranks' logs; " + _STACKS,
    "rebalance_unfinished": "agentctl describe engine {engine} names the rank that it waits for; " + _STACKS,
    "call_stuck": _STACKS + "; check the store or the peer that the connector writes to",
    "step_stuck": _STACKS + "; agentctl describe engine {engine} shows what is in flight",
    "thread_dead": "restart the engine: nothing starts that thread again; search its log for the exception",
    "worker_silent": "check that process (CPU, state, its log); " + _STACKS,
}


def stall_findings(engine: admin.Engine, subject: str) -> Iterator[Finding]:
    """Yield a finding for each stall of an engine.

    Args:
        engine: the agent's view of it.
        subject: its name in the finding.

    """
    name = text.engine(engine.key)
    for stall in engine.stalls:
        advice = _ADVICE.get(stall.kind, "agentctl describe engine {engine}").format(engine=name)
        yield Finding(WRONG, subject, text.one_line(stall.sentence, 300), advice)
