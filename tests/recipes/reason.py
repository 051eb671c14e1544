"""A value of an enum: an error type of failures, a peer that refuses because it has too much to do."""

from __future__ import annotations

import os

from click.testing import CliRunner
from penstock.agent.ctl.main import cli
from penstock.instrumentation.vllm.naming.failure_modes import classify
from penstock.proto import constants

from tests.recipes.edits import Edit, Recipe
from tests.support.agent.agent import running_agent
from tests.support.samples.stand_in_engine import StandInEngine

_WORD = "overloaded"
_NAME = f"ERROR_TYPE_{_WORD.upper()}"
_TEXT = "too many requests"
RECIPE = Recipe(
    "How to add an error type",
    (
        Edit(
            "proto/penstock/proto/v1/common.proto",
            "  ERROR_TYPE_WRONG_ENGINE = 9;\n",
            after=f"  {_NAME} = 10;\n",
        ),
        Edit(
            "tests/proto/golden/contract.txt",
            "penstock.v1.ErrorType.ERROR_TYPE_REFUSED = ",
            before=f"penstock.v1.ErrorType.{_NAME} = 10\n",
        ),
        Edit(
            "proto/penstock/proto/constants.py",
            "ERROR_TYPE_WRONG_ENGINE: Final = 9\n",
            after=f"{_NAME}: Final = 10\n",
        ),
        Edit(
            "instrumentation/penstock/instrumentation/vllm/naming/failure_modes.py",
            '    ("timed out", c.ERROR_TYPE_TIMEOUT),\n',
            before=f'    ("{_TEXT}", c.{_NAME}),\n',
        ),
        Edit(
            "tests/instrumentation/vllm/naming/test_failure_modes.py",
            '    (AssertionError("block sizes"), c.ERROR_TYPE_INCOMPATIBLE),\n',
            before=f'    (RuntimeError("429 Too many requests"), c.{_NAME}),\n',
        ),
        Edit("docs/guides/kv-load-failures.md", "`wrong_engine`, `other`. Both", before=f"`{_WORD}`, "),
        Edit("docs/reference/spans.md", "`wrong_engine`, `other`; of `error.type`", before=f"`{_WORD}`, "),
    ),
    make=("proto", "schema"),
    checks=(
        "tests/proto/test_contract.py",
        "tests/instrumentation/telemetry/test_encoder.py::test_constants_are_the_wires",
        "tests/instrumentation/vllm/naming/test_failure_modes.py",
        "tests/agent/ctl/test_schema.py::test_the_published_schema_is_current",
        "tests/docs/test_guides.py::test_the_guide_to_load_failures_is_complete",
        "tests/docs/test_spans.py::test_the_schema_and_the_words_of_errors",
    ),
)


def prove() -> None:
    """Classify an exception of it; a real agent counts the failure and lists it by that word."""
    failure = classify("handshake_failed", RuntimeError("429 Too many requests"))
    assert failure.error_type == getattr(constants, _NAME), failure
    with running_agent() as agent:
        engine = StandInEngine({"PENSTOCK_ENDPOINT": agent.listen}).start()
        fields = {**failure.fields(), "channel": constants.CHANNEL_KV, "peer": {"address": "10.0.0.7:5600"}}
        engine.emit("transfer_failure", "r-1", worker=True, **fields)
        engine.settle()
        engine.stop()
        os.environ["AGENTCTL_ADDRESS"] = agent.admin
        shown = CliRunner().invoke(cli, ["get", "events"], catch_exceptions=False).output
        assert f"handshake/{_WORD}" in shown, shown
        assert agent.metric("penstock_transfer_failures_total", mode="handshake", error_type=_WORD) == 1


if __name__ == "__main__":
    prove()
