"""The object for machines of a client's error: as the scheduler sends it, and as the client has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jsonschema import Draft202012Validator
from penstock.instrumentation.vllm.compat import native_facts
from penstock.instrumentation.vllm.recovery.error_facts import decode

from tests.support.script import load_script

if TYPE_CHECKING:
    from collections.abc import Mapping

_VALIDATOR = Draft202012Validator(load_script("client_error_schema").schema())


def facts_of(error: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object of an error that fits the published schema, and has vLLM's fields beside it and no more."""
    _VALIDATOR.validate({"error": error})
    assert set(error) == {"message", "type", "param", "code", "penstock"}
    found: dict[str, Any] = error["penstock"]
    return found


def sent_facts(outputs: Mapping[int, Any]) -> dict[str, dict[str, Any] | None]:
    """Return what goes to the API process with each request that ended with an error in a step."""
    return {
        output.request_id: decode(_encoded(output))
        for batch in outputs.values()
        for output in batch.outputs
        if output.finish_reason is not None and str(output.finish_reason) == "error"
    }


def _encoded(output: Any) -> str:
    error = getattr(output, "error", None)
    return native_facts(error) if error is not None else str(output.stop_reason).rpartition("\n")[2]
