"""Policies for failed loads of items, requests with images, and what was decided about them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.instrumentation.runtime import runtime
from penstock.rules.policy import Action, EcLoadFailure

from tests.support.ec.fake_ec import image_request
from tests.support.engine.recorder import policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engine.recorder import Recorder

    MakeScheduler = Callable[..., Any]


OUTPUTS = 4


def act(action: str, items: int | None = None, **more: Any) -> None:
    """Put a policy for failed loads of items in force."""
    runtime.policy.swap(policy(ec=EcLoadFailure(Action(action), items), **more), 1.0)


def image(request_id: str, *names: str, **arguments: Any) -> Any:
    """Return a request with an image of 40 embeddings at each 64th token from the 10th on, and some text."""
    items = {10 + 64 * index: (name, 40) for index, name in enumerate(names)}
    return image_request(
        request_id, items, **{"tokens": 64 * len(names) + 30, "max_tokens": OUTPUTS, **arguments}
    )


def outcome_of(recorder: Recorder, request: Any) -> Any:
    """Return the one outcome of a request."""
    (outcome,) = recorder.take("load_outcome", request.request_id)
    return outcome
