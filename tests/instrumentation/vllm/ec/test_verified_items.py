"""Items that are compared with their producer's checksum, on real schedulers over a memory that tells."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.runtime import runtime
from penstock.instrumentation.vllm.ec.protocol import ExternalItem
from penstock.instrumentation.vllm.ec.verifier import EcVerifier
from penstock.instrumentation.vllm.messages import CheckedItem
from penstock.rules.policy import Integrity, IntegrityAction, Policy

from tests.support.ec.fake_ec import TOY_PEER, ToyEcEngine, expected, image_request

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.engine.recorder import Recorder

    MakeScheduler = Callable[..., Any]

OUTPUTS = 4
TOKENS = 200
TWO = {10: ("a", 30), 100: ("b", 60)}
KINDS = pytest.mark.parametrize("kind", ["sync", "async"])


def verify(action: str, ratio: float = 1.0) -> None:
    """Put a policy in force that verifies this share of the requests."""
    runtime.policy.swap(Policy(integrity=Integrity(ratio, IntegrityAction(action)), hash="verify"), 1.0)


def run(
    make: MakeScheduler, kind: str, *damaged: str, outputs: int = OUTPUTS, unnamed: str = ""
) -> tuple[Any, list[int]]:
    """Let one request load two items, of which some are *damaged* on the way; return it with its output."""
    scheduler = make(kind, connector="ToyChecksums")
    scheduler.ec_connector.store |= {"a", "b"}
    scheduler.ec_connector.unnamed |= set(unnamed)
    engine = ToyEcEngine(scheduler, ahead=kind == "async", damaged=set(damaged).__contains__)
    request = image_request("r", TWO, tokens=TOKENS, max_tokens=outputs)
    engine.run(request)
    verifier = scheduler._penstock.ec._verifier
    assert not verifier._found
    assert not verifier._asked
    return request, engine.outputs["r"]


def verifications(recorder: Recorder) -> list[Any]:
    """Return what the request's end says of them."""
    (closed,) = recorder.take("request_closed", "r")
    return list(closed.verifications)


@KINDS
@pytest.mark.parametrize("outputs", [1, OUTPUTS])
def test_good_items_are_verified(
    kind: str, outputs: int, make_ec_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """Also those of a request that ends with the step that loads them."""
    verify("enforce")
    request, output = run(make_ec_scheduler, kind, outputs=outputs)
    assert output == expected(request, outputs)
    (found,) = verifications(recorder)
    assert (found.channel, found.peer.address) == (c.CHANNEL_EC, TOY_PEER.address)
    assert (found.transferred, found.compared) == (2, 2)
    assert (found.ok, found.mismatch, found.unverified, found.reason) == (2, 0, 0, "")


@KINDS
def test_a_damaged_item_is_encoded_here(
    kind: str, make_ec_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """The output is right under enforce; what failed is a corrupt transfer."""
    verify("enforce")
    request, output = run(make_ec_scheduler, kind, "b")
    assert output == expected(request, OUTPUTS)
    (outcome,) = recorder.take("load_outcome", "r")
    assert (outcome.channel, outcome.outcome) == (c.CHANNEL_EC, c.OUTCOME_RECOMPUTED)
    assert (outcome.mode, outcome.error_type) == (c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_CORRUPT)
    (found,) = verifications(recorder)
    assert (found.ok, found.mismatch, found.unverified) == (1, 1, 0)


@KINDS
def test_a_damaged_item_is_used_under_observe(
    kind: str, make_ec_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """Nothing but the report differs."""
    verify("observe")
    request, output = run(make_ec_scheduler, kind, "b")
    assert output != expected(request, OUTPUTS)
    assert not recorder.take("load_outcome", "r")
    (found,) = verifications(recorder)
    assert (found.ok, found.mismatch) == (1, 1)


def test_an_item_without_a_checksum_is_unverified(
    make_ec_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """It is used, and not called verified."""
    verify("enforce")
    request, output = run(make_ec_scheduler, "sync", unnamed="a")
    assert output == expected(request, OUTPUTS)
    (found,) = verifications(recorder)
    assert (found.ok, found.unverified) == (1, 1)
    assert found.reason == "the connector knows no checksum of the item"


@pytest.mark.parametrize(
    ("ranks", "compared", "mismatch"),
    [("s", 0, 0), ("ss", 0, 0), ("s.", 1, 0), (".s", 1, 0), ("sx", 1, 1), (".x", 1, 1)],
)
def test_an_item_that_every_rank_skips_is_unverified(ranks: str, compared: int, mismatch: int) -> None:
    """By rank: skipped, equal or different. What one rank has compared counts."""
    record = SimpleNamespace(verifications=[])
    memory = SimpleNamespace(checksum=lambda _: 7)
    observer: Any = SimpleNamespace(record=lambda _: record)
    verifier = EcVerifier(memory, observer)
    verifier.on_policy_change(Policy(integrity=Integrity(1.0, IntegrityAction("enforce"))))
    assert verifier.orders([ExternalItem("a", 1, "image", "r")]) == {"a": 7}
    verifier.on_checked(CheckedItem("a", mismatched=rank == "x", skipped=rank == "s") for rank in ranks)
    verifier.on_finished("r")
    (found,) = record.verifications
    assert (found["compared"], found["mismatch"], found["unverified"]) == (compared, mismatch, 1 - compared)
    assert found.get("reason") == (None if compared else "too much was to be compared in one step")


@pytest.mark.parametrize("ratio", [None, 0.0])
def test_without_the_policy_nothing_is_compared(
    ratio: float | None, make_ec_scheduler: MakeScheduler, recorder: Recorder
) -> None:
    """Neither without a policy nor with a share of nothing."""
    if ratio is not None:
        verify("enforce", ratio)
    run(make_ec_scheduler, "sync", "b")
    assert not verifications(recorder)
