"""A request's detail from made-up answers: its gates, and its trace in the operator's own backend."""

from __future__ import annotations

import json
from typing import Any

import pytest
from penstock.agent.page.details import ask_detail
from penstock.agent.page.wire import AdminCalls
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.admin_pb2_grpc import AdminServicer

_TEMPLATE = "https://jaeger.example.com/trace/{trace_id}?uiFind=penstock"
_TRACE = "0af7651916cd43dd8448eb211c80319c"
_START = 1_750_000_000 * 10**9


class _Calls(AdminCalls):
    """An agent that knows one request."""

    def __init__(self, trace_id: str, attributes: dict[str, str]) -> None:
        super().__init__(AdminServicer(), clock=lambda: 1_750_000_100.0)
        span = admin.Span(
            name="penstock.request",
            start_time_unix_nano=_START,
            end_time_unix_nano=_START + 2 * 10**9,
            attributes=attributes,
        )
        self._answers: dict[str, Any] = {
            "Explain": admin.Explanation(request_id="r", trace_id=trace_id, sentences=["It waited."]),
            "GetTrace": admin.Trace(trace_id=trace_id, spans=[span]),
        }

    async def call(self, method: str, request: Any, seconds: float = 0.0) -> Any:
        """Return the answer."""
        return self._answers[method]


async def _asked(template: str, trace_id: str = _TRACE, **attributes: str) -> Any:
    named = {f"penstock.ttft.gate.{name}": value for name, value in attributes.items()}
    return json.loads(await ask_detail(_Calls(trace_id, named), "request", {"id": "r"}, template))


@pytest.mark.parametrize(
    ("template", "trace_id", "url"),
    [
        (_TEMPLATE, _TRACE, f"https://jaeger.example.com/trace/{_TRACE}?uiFind=penstock"),
        ("", _TRACE, ""),
        (_TEMPLATE, "", ""),
        (_TEMPLATE, "../../admin?", ""),
    ],
)
async def test_a_trace_is_linked_where_the_operator_says(template: str, trace_id: str, url: str) -> None:
    """Not what an agent says its trace is, if that is no trace id."""
    assert (await _asked(template, trace_id))["traceUrl"] == url


async def test_gates_are_those_of_the_span() -> None:
    """In the order of the signals; what is no time is left out."""
    found = await _asked(
        "", own_prefill="0.5", queue="1.25", peer="nan", transfer="-1", recompute="soon", encoder="0"
    )
    (bars,) = found["sections"]
    begin = _START / 1e6
    assert bars["rows"][0]["gates"] == [
        {"gate": "queue", "start": begin, "end": begin + 1250},
        {"gate": "own_prefill", "start": begin + 1250, "end": begin + 1750},
    ]
    assert found["sentences"] == ["It waited."]
