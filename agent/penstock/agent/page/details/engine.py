"""The panel of an engine: connected or away since when, its curves, its peers, what failed by kind, and its policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.agent.page.details.arguments import engine_of, selector_of
from penstock.agent.page.details.detail import Detail, PlotSection, sentences, text_section
from penstock.agent.page.details.tables import (
    failed_section,
    failures_request,
    peers_section,
    policy_section,
    since_of,
)
from penstock.agent.page.wire import AdminCalls, AnswerError, about, plain
from penstock.agent.views import text
from penstock.agent.views.engines import engine_description, is_stopped
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PLOT_TITLES: Final[Mapping[str, str]] = {
    "requests": "Requests ended, per second",
    "ttft": "Time to first token",
    "queue": "Requests in the engine",
    "loads": "Loads and bytes, per second",
    "failed": "Requests failed or recomputed, share",
    "held": "KV blocks held, share of the cache",
}
"""The plots of the page by their names."""
# Who sends state to others; who answers requests has a time to first token.
_SENDERS: Final = frozenset({common.ROLE_PREFILL, common.ROLE_ENCODER})


async def engine_detail(calls: AdminCalls, query: Mapping[str, str]) -> Detail:
    """Return the panel of an engine.

    Raises:
        AnswerError: no such engine is known, or nobody answers.

    """
    key = engine_of(query, "key")
    if key is None:
        raise AnswerError(400, "key is missing")
    selector, name, now = selector_of(key), text.engine(key), calls.clock()
    engines = (await calls.call("ListEngines", admin.ListEnginesRequest(selector=selector))).engines
    if not engines:
        raise AnswerError(404, f"engine {name!r} not found; 'agentctl get engines' lists them")
    effective = await calls.call("GetEffectivePolicy", admin.GetEffectivePolicyRequest(key=key))
    listed = (await calls.call("ListPeers", admin.ListPeersRequest(selector=selector, state="all"))).peers
    peers = [item for item in listed if not item.retired]
    holders = (await calls.call("ListHolders", admin.ListHoldersRequest(selector=selector))).holders
    failures = await calls.call("ListEvents", failures_request(selector))
    _, *lines = engine_description(engines[0], effective, peers, now, holders)
    curve = "loads" if engines[0].role in _SENDERS else "ttft"
    return Detail(
        title=plain(f"Engine {name}"),
        sentences=sentences(_sentences(engines[0], now)),
        command=about("describe", "engine", name=name),
        sections=(
            *(PlotSection(PLOT_TITLES[plot], plot, plain(name)) for plot in (curve, "queue")),
            peers_section(peers, now),
            failed_section(listed, failures, now),
            policy_section("What the policy does", effective),
            text_section("Engine", lines, folded=True),
        ),
    )


def _sentences(item: admin.Engine, now: float) -> Iterator[str]:
    """Yield whether it is there, paused or out of rotation, and what stands still, each since when."""
    if item.connected:
        begun = item.facts.start_time_unix_nano
        started = f"; it started {text.ago(begun, now)}" if begun else "; when it started is not known"
        yield f"It is connected{started}"
    else:
        way = "was stopped" if is_stopped(item) else "is away"
        last = since_of(item.last_seen, now) if item.HasField("last_seen") else "since when is not known"
        yield f"It {way}, {last}"
    if item.HasField("pause"):
        yield f"It is paused: {text.pause_origin(item.pause, now)}"
    elif item.paused:
        yield "It is paused; since when is not known"
    if item.HasField("ejection"):
        yield f"It is out of rotation: {text.ejection_words(item.ejection, now)}"
    for stall in item.stalls:
        since = since_of(stall.since, now) if stall.HasField("since") else "since when is not known"
        yield f"{text.one_line(stall.sentence, 300)} ({since})"
