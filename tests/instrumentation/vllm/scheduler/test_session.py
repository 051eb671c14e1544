"""The session of a scheduler."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from penstock.instrumentation.vllm.scheduler import session

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # vLLM's own

if TYPE_CHECKING:
    from collections.abc import Callable

    MakeScheduler = Callable[..., Any]


def test_the_policys_fields() -> None:
    """An engine says that it acts upon ``ecLoadFailure``; a policy with it would else be refused."""
    assert "ec_load_failure" in session.POLICY_FIELDS
