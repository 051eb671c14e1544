"""What comes from outside, how much of it is taken, and the test that tries more: one table, which the guide shows.

``python -m tests.test_outer_inputs`` writes it into the guide.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import NamedTuple

import pytest
from penstock.agent.answers import bounds_of, fleet_bounds_of
from penstock.agent.answers import contents as answer_contents
from penstock.agent.bundle import contents, unpack
from penstock.agent.ctl.connection.client import ANSWER_DEADLINE
from penstock.agent.ctl.routers import calls as router_calls
from penstock.agent.ctl.routers import exchange
from penstock.agent.ctl.routers.endpoints import MAX_ENDPOINTS, MAX_FILE_BYTES
from penstock.agent.evidence import served
from penstock.agent.ingest import admission, message_limits, service
from penstock.agent.page import server as page
from penstock.agent.page.details import policy_fields
from penstock.agent.page.live import hub, tab
from penstock.agent.parsing import format_size, options, yaml_documents
from penstock.agent.policy.files import file_source
from penstock.agent.policy.kubernetes import api_client
from penstock.agent.policy.sources import interface
from penstock.agent.policy.sources.nats import entries as nats_entries
from penstock.agent.relay import merged_streams as streams
from penstock.agent.server import feed_server, grpc_server, page_tokens
from penstock.agent.traces.export import otlp_http
from penstock.agent.views.router_feed import MAX_BODY_BYTES
from penstock.instrumentation.vllm.zmq_ec.wire import messages as zmq_messages

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "docs/guides/limits.md"
_HEAD = ("input", "bytes", "entries", "nesting", "rate and time", "more than that")
_BEGIN, _END = "<!-- inputs -->\n", "<!-- end of inputs -->\n"
# Where protobuf's own limit holds.
_PROTOBUF = "100"


class Input(NamedTuple):
    """One row.

    Attributes:
        name: what comes in.
        size: bytes.
        entries: how many of what.
        nesting: levels.
        pace: of work and waiting.
        breach: what becomes of more.
        tests: that try it, over a real socket or with a real file.

    """

    name: str
    size: str
    entries: str
    nesting: str
    pace: str
    breach: str
    tests: tuple[str, ...]


def _size(count: int) -> str:
    return format_size(count) if count >= 1 << 20 else f"{count >> 10} KiB"


_AGENT, _FLEET = bounds_of("ListPeers"), fleet_bounds_of("ListPeers")
INPUTS = (
    Input(
        "messages of engines",
        _size(message_limits.MAX_MESSAGE_BYTES),
        f"{message_limits.MAX_ENTRIES:,} in a message; {admission.MAX_STREAMS:,} streams, {admission.MAX_ENGINES} engines",
        _PROTOBUF,
        f"{_size(service.SOURCE_BYTES_PER_SECOND)} a second of a source",
        "the message is refused with a sentence, and counted",
        (
            "tests/faults/test_hostile.py::test_a_message_that_is_wrong",
            "tests/faults/test_hostile.py::test_a_message_that_swells",
            "tests/faults/test_hostile.py::test_a_flood",
        ),
    ),
    Input(
        "calls of the admin service",
        _size(grpc_server._MAX_RECEIVE_BYTES),
        f"{grpc_server._MAX_CALLS:,} calls, {grpc_server._MAX_CONNECTIONS:,} connections",
        _PROTOBUF,
        "two questions of the log at a time",
        "the call ends with a status; the log says nothing",
        (
            "tests/agent/admin/test_hostile_calls.py::test_calls_that_are_cut_at_any_moment",
            "tests/agent/admin/test_hostile_calls.py::test_frames_that_are_half_of_something",
            "tests/agent/admin/test_hostile_calls.py::test_requests_that_say_what_cannot_be",
        ),
    ),
    Input(
        "an agent's answers to a relay",
        f"{_size(_AGENT.size)} ({_size(bounds_of('ListEvents').size)} of the log)",
        f"{_AGENT.entries:,}; {_AGENT.rows:,} rows, {_AGENT.engines} engines",
        f"{_PROTOBUF}; {answer_contents.MAX_DEPTH} of a document",
        "`--deadline`",
        "the agent counts as one that has not answered, with the reason",
        (
            "tests/agent/relay/test_hostile_agents.py::test_an_answer_that_cannot_be_used_costs_its_agents_row",
        ),
    ),
    Input(
        "answers to `agentctl`",
        _size(_FLEET.size),
        f"{_FLEET.entries:,}; {_FLEET.rows:,} rows",
        f"{_PROTOBUF}; {answer_contents.MAX_DEPTH} of a document",
        f"{ANSWER_DEADLINE:.0f} s for an answer",
        "a sentence says whose answer to what, exit code 1",
        (
            "tests/agent/ctl/test_hostile_answers.py::test_what_fields_say",
            "tests/agent/ctl/test_hostile_answers.py::test_documents_that_are_none",
            "tests/agent/ctl/test_hostile_answers.py::test_longer_lists_than_any_relay_has",
            "tests/agent/ctl/test_hostile_answers.py::test_streams_without_an_end",
        ),
    ),
    Input(
        "watches of events at a relay",
        f"{_size(bounds_of('WatchEvents').size)} an event, {_size(streams._MAX_WAITING_BYTES)} that wait",
        f"{streams._MAX_WAITING:,} that wait; {streams.MAX_WATCHES} watches",
        _PROTOBUF,
        "as fast as the reader",
        "a slow reader slows the agents' streams; one watch more is refused",
        ("tests/agent/relay/test_hostile_agents.py::test_a_watcher_that_does_not_read",),
    ),
    Input(
        "policies from NATS",
        f"{_size(interface.MAX_ITEM_BYTES)} a value",
        f"{interface.MAX_ITEMS} values of {nats_entries.MAX_KEYS:,} keys; {yaml_documents.MAX_POLICY_VALUES:,} in each",
        str(yaml_documents.MAX_DEPTH),
        "each value is read once, beside the loop",
        "the value is refused, the last good one holds",
        (
            "tests/agent/policy/sources/nats/test_source.py::test_a_bucket_with_too_many_keys_withdraws_nothing",
        ),
    ),
    Input(
        "policies from Kubernetes",
        f"{_size(interface.MAX_ITEM_BYTES)} a policy, {_size(api_client._MAX_PAGE_BYTES)} a page, "
        f"{_size(api_client._MAX_LINE_BYTES)} a watch event",
        f"{api_client.MAX_OBJECTS} objects; {yaml_documents.MAX_POLICY_VALUES:,} in each",
        str(yaml_documents.MAX_DEPTH),
        "each object is read once, beside the loop",
        "the object is refused, the last good one holds",
        (
            "tests/agent/policy/kubernetes/test_fake_server.py::test_a_large_object_is_refused_and_the_others_hold",
            "tests/agent/policy/kubernetes/test_fake_server.py::test_too_many_objects_are_no_set",
        ),
    ),
    Input(
        "policy files",
        _size(file_source.MAX_BYTES),
        f"{file_source.MAX_FILES} files; {yaml_documents.MAX_VALUES:,} values",
        str(yaml_documents.MAX_DEPTH),
        "read when they change",
        "refused as a whole, the last good content holds",
        (
            "tests/agent/policy/files/test_file_source.py::test_too_many_files",
            "tests/agent/policy/files/test_file_source.py::test_what_is_no_policy_file_is_refused",
        ),
    ),
    Input(
        "the file of `--config`",
        _size(options.MAX_FILE_BYTES),
        "-",
        "what the interpreter takes",
        "read once",
        "the agent does not start, with a sentence",
        ("tests/agent/daemon/test_config.py::test_a_file_that_is_made_to_hurt",),
    ),
    Input(
        "the agent's own databases",
        "`--state-limit`",
        "-",
        "-",
        "read when it starts",
        "what is damaged is set aside, what can be read is kept",
        ("tests/agent/journal/test_damage.py::test_what_no_agent_wrote_is_damage",),
    ),
    Input(
        "bundles",
        f"{_size(unpack._MAX_TOTAL)} unpacked, {unpack._MAX_RATIO} times as much as packed",
        f"{unpack._MAX_FILES} files; {contents.MAX_VALUES:,} values",
        "what JSON takes",
        f"{served._OPEN_SECONDS:.0f} s to open",
        "a sentence, and nothing stays unpacked",
        ("tests/agent/evidence/test_hostile_bundles.py::test_a_hostile_one_gets_a_sentence",),
    ),
    Input(
        "reads of the page",
        f"{_size(tab.MAX_WAITING_BYTES)} that wait for a tab",
        f"{hub.MAX_TABS} tabs, {page._MAX_CONNECTIONS} connections",
        "-",
        f"{page.MAX_QUESTIONS} questions at a time",
        "the tab is told; who does not read is cut off",
        (
            "tests/agent/page/live/test_stream.py::test_too_many_tabs_are_told",
            "tests/agent/page/live/test_stream.py::test_nobody_waits_for_a_tab_that_does_not_read",
        ),
    ),
    Input(
        "tokens of the page",
        f"{page_tokens.MAX_TOKEN_CHARACTERS} characters",
        "none is kept",
        "-",
        f"{page_tokens.TOKEN_SECONDS // 3600} hours",
        "as without one; it is not decoded",
        (
            "tests/agent/server/test_page_tokens.py::test_a_long_one_is_not_decoded",
            "tests/agent/page/test_tokens.py::test_a_closed_page_shows_nothing_without_a_token",
        ),
    ),
    Input(
        "writes of the page",
        f"{_size(page.MAX_BODY_BYTES)}, {_size(policy_fields._MAX_MANIFEST)} a policy",
        f"{yaml_documents.MAX_POLICY_VALUES:,} values",
        str(yaml_documents.MAX_DEPTH),
        "one after the other",
        "refused with a sentence; more is not read",
        (
            "tests/agent/page/test_access.py::test_a_body_that_is_too_large_is_not_read",
            "tests/agent/page/details/test_writes.py::test_a_manifest_that_takes_long_is_refused",
        ),
    ),
    Input(
        "reads of the feed for routers",
        f"{_size(MAX_BODY_BYTES)} of a document",
        f"{feed_server.MAX_CONNECTIONS:,} connections that poll, as many that follow",
        "-",
        f"one document in {feed_server.Pace().least:.0f} s; {feed_server.Pace().write:.0f} s to take it",
        "the oldest that polls makes room; one more that follows is refused; who does not read is cut off",
        (
            "tests/agent/server/test_feed_server.py::test_a_thousand_poll_one_document",
            "tests/agent/server/test_feed_server.py::test_one_stream_too_many_is_told",
            "tests/agent/server/test_feed_server.py::test_a_reader_that_does_not_read_is_cut_off",
            "tests/agent/views/router_feed/test_build.py::test_a_body_has_a_bound",
        ),
    ),
    Input(
        "answers of a router to `agentctl routers`",
        _size(exchange.MAX_ANSWER_BYTES),
        "-",
        "what JSON takes",
        f"{router_calls.CALL_SECONDS:.0f} s for an answer",
        "a sentence; it is tried again after a pause",
        (
            "tests/agent/ctl/routers/test_calls.py::test_answers_that_no_router_gives",
            "tests/agent/ctl/routers/test_calls.py::test_one_that_never_ends",
        ),
    ),
    Input(
        "files of `agentctl routers`",
        _size(MAX_FILE_BYTES),
        f"{MAX_ENDPOINTS:,} endpoints",
        "what JSON takes",
        "read once",
        "a sentence, exit code 2",
        (
            "tests/agent/ctl/routers/test_files.py::test_files_that_cannot_be_read",
            "tests/agent/ctl/routers/test_files.py::test_bases_that_are_none",
            "tests/agent/ctl/routers/test_endpoints.py::test_contradictions",
        ),
    ),
    Input(
        "ZmqECConnector's messages",
        f"{zmq_messages.HEADER_MAX:,} bytes of a header, {_size(zmq_messages.CHUNK_MAX)} of an item at a time",
        f"{zmq_messages.ROWS_MAX:,} rows of an item",
        "-",
        "what a peer has not read is bounded",
        "the message is ignored, or its connection ends",
        (
            "tests/instrumentation/vllm/zmq_ec/producer/test_server.py::test_any_frames",
            "tests/instrumentation/vllm/zmq_ec/producer/test_server.py::test_an_oversize_message_costs_its_connection",
        ),
    ),
    Input(
        "answers of the trace backend",
        _size(otlp_http._MAX_ANSWER),
        "-",
        _PROTOBUF,
        "`OTEL_EXPORTER_OTLP_TIMEOUT`",
        "more is not read; the spans are sent again later",
        ("tests/agent/traces/export/test_refusals.py::test_a_backend_that_never_answers",),
    ),
)


def table() -> str:
    """Return the rows as a table of Markdown."""
    rows = [_HEAD, ("---",) * len(_HEAD), *(tuple(map(str, each[: len(_HEAD)])) for each in INPUTS)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


@pytest.mark.parametrize("each", INPUTS, ids=lambda each: each.name)
def test_each_input_is_tried(each: Input) -> None:
    """By tests that there are."""
    assert each.tests
    for test in each.tests:
        path, _, name = test.partition("::")
        found = ast.parse((ROOT / path).read_text()).body
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        assert name in {node.name for node in found if isinstance(node, functions)}, test


def test_the_guide_has_the_bounds_of_the_code() -> None:
    """Run ``python -m tests.test_outer_inputs`` after a change."""
    _, _, rest = GUIDE.read_text().partition(_BEGIN)
    assert rest.partition(_END)[0].strip() == table().strip()


if __name__ == "__main__":
    before, _, rest = GUIDE.read_text().partition(_BEGIN)
    GUIDE.write_text(f"{before}{_BEGIN}\n{table()}\n{_END}{rest.partition(_END)[2]}")
