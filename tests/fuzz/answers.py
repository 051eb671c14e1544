"""What the agent answers about hostile entries, and what agentctl makes of it: without disk, network and threads."""

from __future__ import annotations

import json
import tempfile
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from penstock.agent.admin.calls import events, requests
from penstock.agent.admin.calls.engines import list_engines
from penstock.agent.admin.lookups.known_peers import PeerSources, clock_offsets, last_snapshots
from penstock.agent.admin.lookups.peers import listed_peers
from penstock.agent.admin.lookups.requests import deferred_requests
from penstock.agent.admin.lookups.targets import selection_of
from penstock.agent.ctl import output
from penstock.agent.ctl.top.view import AgentState as TopSample
from penstock.agent.ctl.top.view import History
from penstock.agent.errors import NotFoundError
from penstock.agent.policy.distribution import PolicySources
from penstock.agent.policy.distribution.feed import PolicyFeed
from penstock.agent.policy.orders.kill_switch import Pauses
from penstock.agent.policy.orders.order_store import OrderStore
from penstock.agent.policy.store.database import PolicyDatabase
from penstock.agent.policy.store.sqlite_store import PolicyStore
from penstock.agent.traces.query.explain import explain_request
from penstock.agent.traces.query.trace import get_trace
from penstock.agent.traces.spans.sdk_spans import SpanConverter
from penstock.agent.views.checks.agent_checks import check_agent
from penstock.agent.views.engines import engine_description, engine_rows
from penstock.agent.views.events import event_rows
from penstock.agent.views.json_values import as_json_values
from penstock.agent.views.peers import peer_rows
from penstock.agent.views.requests import request_rows, tree_lines
from penstock.agent.views.tables import table as aligned_table
from penstock.agent.views.text import printable
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import Outcome

from tests.support.agent.memory_journal import SharedReader

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable

    from google.protobuf.message import Message
    from penstock.agent.metrics.aggregator import Aggregator
    from penstock.agent.sources.registry import Registry
    from penstock.agent.traces.spans.model import Span
    from penstock.agent.views.tables import Table
    from penstock.proto.v1.ingest_pb2 import Batch

# Of one message: each is read with a query of its own.
_REQUESTS = 4


class Answers:
    """All questions that can be asked, as the admin service and agentctl put and show them."""

    def __init__(self, database: sqlite3.Connection, now: float) -> None:
        self._reader = SharedReader(database)
        self._now = now
        self._directory = tempfile.TemporaryDirectory(prefix="ps-fuzz-")
        policies = self._policies = PolicyDatabase.open(Path(self._directory.name))
        store, pauses, orders = PolicyStore(policies), Pauses(policies), OrderStore(policies)
        feed = PolicyFeed(store, pauses, orders)
        sources = PolicySources(store, feed)
        self._parts: dict[str, Any] = {
            "store": store,
            "pauses": pauses,
            "orders": orders,
            "feed": feed,
            "policies": sources,
        }
        self._converter = SpanConverter()

    def close(self) -> None:
        """Leave nothing behind."""
        self._policies.close()
        self._directory.cleanup()

    def about_log(self, batch: Batch) -> None:
        """Ask about what the log holds; *batch* is a part of it."""
        reader, now = self._reader, self._now
        wanted = events.Filter.of(admin.ListEventsRequest())
        found = events._list(reader, wanted, 1_000, now)
        shown(found, event_rows(found.events, now))
        everything = selection_of(admin.EngineSelector())
        outcomes: tuple[Any, ...] = (0, *islice(Outcome.values(), 1, 2))
        times = requests._Times(0, int(now * 1e9))
        asked = [admin.ListRequestsRequest(outcome=outcome) for outcome in outcomes]
        for each in (*asked, admin.ListRequestsRequest(slow=True)):
            known = requests._logged_requests(reader, each, everything, times, 100)
            shown(known, request_rows(known.requests, now))
        names = dict.fromkeys(event.request_id for event in batch.events)
        for name in islice(filter(None, names), _REQUESTS):
            self._about_request(name)

    def _about_request(self, name: str) -> None:
        try:
            tree = get_trace(self._reader, name)
            shown(tree)
            sentences = explain_request(self._reader, name)
        except NotFoundError:
            return
        list(map(printable, tree_lines(tree)))
        shown(sentences)
        list(map(printable, sentences.sentences))

    def about_engines(self, aggregator: Aggregator, registry: Registry) -> None:
        """Ask about what is here now."""
        context = SimpleNamespace(
            **self._parts,
            aggregator=aggregator,
            registry=registry,
            schedule=lambda _target: _NOTHING,
            clock=lambda: self._now,
            now=datetime.fromtimestamp(self._now, UTC),
            retirement=SimpleNamespace(left=lambda _key: 1.0),
            stalls=dict,
            ended_stalls=dict,
        )
        engines = finished(list_engines(context, admin.ListEnginesRequest()))  # type: ignore[arg-type]
        unix_nano, views = int(self._now * 1e9), registry.engines()
        known = PeerSources(aggregator, last_snapshots(views), {}, clock_offsets(views), unix_nano)
        peers = listed_peers(known, admin.ListPeersRequest(), 0)
        deferred = deferred_requests(self._reader, registry.sources(), "", 0, 100, unix_nano)
        shown(engines, engine_rows(engines.engines, self._now))
        shown(peers, peer_rows(peers.peers, self._now))
        shown(deferred, request_rows(deferred.requests, self._now))
        status = admin.AgentStatus()
        status.now.FromNanoseconds(int(self._now * 1e9))
        check_agent(status, engines.engines, self._now)
        for engine in engines.engines:
            list(engine_description(engine, admin.EffectivePolicy(), list(peers.peers), self._now))
        history = History()
        history.add(TopSample(1.0, self._now, status, tuple(engines.engines), tuple(peers.peers)))

    def about_spans(self, spans: Iterable[Span]) -> None:
        """Encode spans as the export does."""
        readable = [self._converter.readable(span, replayed=True) for span in spans]
        if readable:
            encode_spans(readable).SerializeToString()


class _Nothing:
    merged = SimpleNamespace(hash="")


_NOTHING = (_Nothing,)


def shown(message: Message, table: Table | None = None) -> dict[str, Any]:
    """Put *message* on the wire and show it as a table and as JSON; YAML is of the same document, and slow."""
    again = type(message).FromString(message.SerializeToString())
    document = as_json_values(again)
    text = output.dump(document, "json")
    json.loads(text, parse_constant=no_json)
    text.encode()
    if table is not None:
        aligned_table(table.headers, table.rows).encode()
    return document


def no_json(word: str) -> None:
    """Refuse NaN and Infinity, which Python reads and others do not."""
    raise AssertionError(f"{word} is no JSON")


def finished(answer: Any) -> Any:
    """Run a coroutine that waits for nothing."""
    try:
        answer.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")
