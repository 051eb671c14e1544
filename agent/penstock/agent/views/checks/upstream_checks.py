"""Compares what Penstock's hooks have seen with vLLM's own counters of the same events. Pure.

Both numbers are the engine's, of one moment (``UpstreamCount`` in ``snapshot.proto``). What becomes of an emitted entry on its
way into the log is another account: ``Source.unaccounted_entries``.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from penstock.agent.views import text
from penstock.agent.views.checks.findings import OK, WRONG, Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.proto.v1 import admin_pb2 as admin

# By vLLM's name of a counter: one of what it counts, and vLLM's metric; that of failed transfers is the sum of three counters.
_WORDS: Final = {
    "num_notifications_after_expiry": ("late read", "vllm:nixl_num_notifications_after_expiry_total"),
    "num_kv_expired_reqs": ("expired lease", "vllm:nixl_num_kv_expired_reqs_total"),
    "num_failed_handshakes": ("failed handshake", "vllm:nixl_num_failed_transfers_total"),
    "num_failed_notifications": ("failed notification", "vllm:nixl_num_failed_notifications_total"),
    "num_failed_transfers": ("failed transfer", "vllm:nixl_num_failed_transfers_total"),
}


def upstream_findings(engine: admin.Engine, subject: str) -> Iterator[Finding]:
    """Yield a finding for each counter that differs; one for all where vLLM has counted something and none differs.

    Args:
        engine: the agent's view of it.
        subject: its name in the finding.

    """
    agreed: Counter[str] = Counter()
    differ = False
    for source in engine.sources:
        for row in source.upstream_counts if source.connected else ():
            noun, metric = _WORDS.get(row.name, (row.name, ""))
            agreed[noun] += row.upstream
            if row.upstream == row.seen:
                continue
            differ = True
            process = f"worker {row.rank}" if source.hello.process == "worker" else source.hello.process
            yield Finding(
                WRONG,
                subject,
                f"{process}: vLLM counts {text.count(row.upstream, noun)} ({row.name}), penstock {row.seen}, since the "
                "process began",
                f"trust vLLM's own{f' ({metric})' if metric else ''}: penstock misses some, or vLLM counts differently; "
                "report it with the engine's log",
            )
    if agreed and not differ:
        counts = ", ".join(text.count(number, noun) for noun, number in agreed.items())
        yield Finding(OK, subject, f"vLLM's own counters agree: {counts}")
