"""A call into a connector that does not return, on an engine whose store hangs."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING
from unittest import mock

import pytest

from demo.common.client import complete
from tests.support.agent.operator import Operator
from tests.support.kv.connector_trial import PROMPTS, SETUPS, TOKENS, trial

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.engine, pytest.mark.long]


def test_a_load_does_not_return(tmp_path: Path) -> None:
    """Diagnose names the call, doctor what to do; when the store answers again, so does the engine."""
    from tests.support.kv.hanging_connector import hanging, hung  # imports vLLM, which takes seconds

    with (
        mock.patch.dict(SETUPS, {"hanging": hanging}),
        trial("hanging", directory=tmp_path) as found,
    ):

        def ask() -> None:
            with suppress(OSError):
                complete(found.engine.url, PROMPTS[-1], max_tokens=TOKENS, timeout=100.0)

        operator = Operator(found.agent, tmp_path)
        asking = threading.Thread(target=ask)
        with hung(found.store):
            asking.start()
            operator.diagnoses("call_stuck", "HangingConnector.start_load_kv")
            operator.reads("doctor", "wrong", "has been in HangingConnector.start_load_kv for")
            operator.records("stuck-load")
        asking.join()
        assert complete(found.engine.url, PROMPTS[0], max_tokens=TOKENS).status == 200
