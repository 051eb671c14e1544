"""Numbers, timestamps and trees as tables print them."""

from __future__ import annotations

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from penstock.agent.views import text
from penstock.agent.views.json_values import as_json_values
from penstock.agent.views.requests import tree_lines
from penstock.agent.views.tables import table
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import ROLE_DECODE, EngineKey, PolicySource


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (3_599, "59m"),
        (7_200, "2h"),
        (86_400, "24h"),
        (200_000, "2d"),
        (-3, "0s"),
    ],
)
def test_ages(seconds: float, said: str) -> None:
    """Ages have kubectl's form."""
    assert text.age(seconds) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0"),
        (2e-6, "2.0µs"),
        (0.0012, "1.2ms"),
        (0.041, "41ms"),
        (3.44, "3.4s"),
        (60, "60s"),
        (600, "10m"),
    ],
)
def test_spans_of_time(seconds: float, said: str) -> None:
    """Durations have two significant digits."""
    assert text.span_of_time(seconds) == said


def test_moments() -> None:
    """Past, future and unset timestamps."""
    assert text.ago(1_000_000_000_000, 1012.0) == "12s ago"
    assert text.ago(1_000_000_000_000, 700.0) == "in 5m"
    assert text.ago(0, 700.0) == text.ago_of(Timestamp(), 700.0) == "-"


@pytest.mark.parametrize(
    ("sources", "hash_", "whole", "short"),
    [
        ((), "", "vllm's own", "vllm's own"),
        ((), "0123456789abcdef", "0123456789ab", "0123456789ab"),
        (
            (PolicySource(name="decode", generation=3, author="alice@host"),),
            "0123456789abcdef",
            "decode (generation 3, by alice@host)",
            "decode/3",
        ),
        # The author of a trimmed log is not known; one that is too long is cut.
        (
            (
                PolicySource(name="a", generation=1),
                PolicySource(name="b", generation=2, author="x" * 1024),
            ),
            "h",
            f"a (generation 1), b (generation 2, by {'x' * 99}…)",
            "a/1,b/2",
        ),
        (
            tuple(PolicySource(name=name, generation=1, author="f") for name in "abcde"),
            "h",
            "a (generation 1, by f), b (generation 1, by f), c (generation 1, by f), 2 more",
            "a/1,b/1,c/1,2 more",
        ),
    ],
)
def test_names_of_policies(sources: tuple[PolicySource, ...], hash_: str, whole: str, short: str) -> None:
    """Policies have name, generation and author; unknown ones their hash."""
    assert text.policies(sources, hash_) == whole
    assert text.short_policies(sources, hash_) == short


def test_texts() -> None:
    """An engine has the server only if it is named; a long line is cut with an ellipsis."""
    assert text.engine(EngineKey(server="decode", engine="1")) == "decode/1"
    assert text.engine(EngineKey(engine="1")) == "1"
    assert text.engine(EngineKey()) == "-"
    assert text.one_line("a\n  b", 10) == "a b"
    assert text.one_line("x" * 20, 10) == "x" * 9 + "…"


def test_colours_are_no_width() -> None:
    """Columns are aligned by visible width; lines have no trailing spaces."""
    assert (
        table(("A", "B"), [(text.style("xx", "red"), "1"), ("yyyy", "")])
        == "A      B\n\x1b[31mxx\x1b[0m     1\nyyyy"
    )


def test_a_message_as_json_values() -> None:
    """Maps, lists, enum words and embedded JSON; unset messages are absent, zeros are present."""
    status = as_json_values(admin.Policy(name="p", manifest_json='{"a": 1}', generation=7))
    assert status["manifest"] == {"a": 1}
    assert status["generation"] == 7
    assert status["enginesInForce"] == 0
    assert "changed" not in status
    engine = as_json_values(admin.Engine(labels={"b": "2", "a": "1"}, role=ROLE_DECODE))
    assert engine["role"] == "decode"
    assert list(engine["labels"].items()) == [("a", "1"), ("b", "2")]
    assert engine["sources"] == []
    (source,) = as_json_values(admin.Engine(sources=[{"hello": {"pid": 7, "secret": b"s" * 16}}]))["sources"]
    assert source["hello"]["pid"] == 7
    assert "secret" not in source["hello"]


def _span(name: str, span_id: str, parent: str, start: int, **fields: object) -> admin.Span:
    return admin.Span(
        name=name,
        span_id=span_id,
        parent_span_id=parent,
        start_time_unix_nano=start,
        end_time_unix_nano=start + 1_000_000,
        service="vllm-decode",
        key={"engine": "0"},
        **fields,  # type: ignore[arg-type]
    )


def test_a_trace_is_a_tree() -> None:
    """Children are below their parents, by time; orphans, circles and links are printed."""
    trace = admin.Trace(
        trace_id="t1",
        spans=[
            _span("penstock.request", "a", "", 0, attributes={"penstock.outcome": "failed", "other": "x"}),
            _span("late", "c", "a", 5_000_000, status="error", status_message="refused\nby peer"),
            _span("early", "b", "a", 2_000_000, links=[{"trace_id": "t2", "span_id": "z"}]),
            _span("orphan", "d", "gone", 9_000_000),
            _span("circle", "e", "e", 9_500_000),
        ],
    )
    assert list(map(text.printable, tree_lines(trace))) == [
        "trace t1",
        "├─ \x1b[1mpenstock.request\x1b[0m  [vllm-decode 0]  +0  1.0ms  outcome=failed",
        "│  ├─ \x1b[1mearly\x1b[0m  [vllm-decode 0]  +2.0ms  1.0ms",
        "│  │  · linked to span z of trace t2",
        "│  └─ \x1b[1mlate\x1b[0m  [vllm-decode 0]  +5.0ms  1.0ms  \x1b[31mERROR: refused by peer\x1b[0m",
        "└─ \x1b[1morphan\x1b[0m  [vllm-decode 0]  +9.0ms  1.0ms",
        "\x1b[1mcircle\x1b[0m  [vllm-decode 0]  +9.5ms  1.0ms",
    ]


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("cmpl-1 ümläut 日本", "cmpl-1 ümläut 日本"),
        ("a\x1b[2Jb\x1b]0;t\x07", r"a\x1b[2Jb\x1b]0;t\x07"),
        ("one\ntwo\r\0", r"one\ntwo\r\x00"),
        ("\u202eabc\x9b", r"\u202eabc\x9b"),
        ("\x1b[31mred\x1b[0m", r"\x1b[31mred\x1b[0m"),
        ("zero\u200bwidth\u00ad\ufeff", r"zero\u200bwidth\xad\ufeff"),
        ("\U000e0041", r"\U000e0041"),
        (text.style("x\x1b[8m", "red"), "\x1b[31mx\\x1b[8m\x1b[0m"),
    ],
)
def test_what_a_client_chose_cannot_move_the_cursor(said: str, shown: str) -> None:
    """Escape codes of clients are escaped; only agentctl's own colours remain."""
    assert text.printable(said) == shown
    assert table(("ID",), [(said,)]).splitlines()[1:] == [shown]
