"""vLLM's ECExampleConnector with bad files: what a policy makes of them, and vLLM without one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1 import common_pb2 as c

from demo.common.images import Picture
from demo.common.processes import ChildError
from demo.common.steps import until
from demo.common.vision_model import can_read_pictures
from tests.e2e.ec_soak import FileSoak
from tests.support.ec.bench import ask
from tests.support.ec.files import FileBench, fewer_rows, garble, truncate, wider
from tests.support.ec.stacks import file_bench
from tests.support.engine.pairs import CPU_DEFAULTS, UNI

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.proto.v1.admin_pb2 import Span

    from tests.support.ec.bench import Ask

pytestmark = [
    pytest.mark.engine,
    pytest.mark.parametrize(
        "served", [CPU_DEFAULTS, pytest.param(UNI, marks=pytest.mark.long)], indirect=True, ids=["cpu", "uni"]
    ),
]


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileBench]:
    """Run agent and server."""
    if not can_read_pictures():
        pytest.skip("the transformers of this vLLM reads no picture without torchvision")
    root = tmp_path_factory.mktemp(f"ec-files-{request.param.name}")
    files = root / "files"
    files.mkdir()
    with file_bench(request.param, files=files, logs=root) as bench:
        yield bench


@pytest.fixture
def ec(served: FileBench) -> Iterator[FileBench]:
    """Begin and end without a policy, and see that our code raised nothing."""
    served.forget()
    yield served
    if served.engine.child.running:
        served.forget()
    assert not served.guard_errors()


def _bad(ec: FileBench, damage: Callable[[Path], None], request: Ask, *others: Ask) -> list[tuple[int, ...]]:
    """Have all encoded, then *damage* the files of *request*; return the tokens of a run without failure."""
    before = ec.files()
    ec.encoded(request)
    mine = ec.files() - before
    tokens = ec.encoded(request, *others)
    for file in sorted(mine):
        damage(file)
    return tokens


def _first_decided(ec: FileBench, *requests: Ask) -> Ask | None:
    """Return one of *requests* about whose load something was decided."""
    return next((request for request in requests if ec.events("load_outcome", request.name)), None)


def _spans(ec: FileBench, name: str, *requests: Ask) -> list[Span]:
    return [span for request in requests for span in ec.spans_of(request.name) if span.name == name]


@pytest.mark.parametrize(
    ("damage", "error_type"),
    [
        (truncate, c.ERROR_TYPE_CORRUPT),
        pytest.param(fewer_rows, c.ERROR_TYPE_CORRUPT, marks=pytest.mark.long),
        pytest.param(wider, c.ERROR_TYPE_CORRUPT, marks=pytest.mark.long),
    ],
)
def test_a_bad_file_is_encoded_again(ec: FileBench, damage: Callable[[Path], None], error_type: int) -> None:
    """The tokens are those of a run without failure, and so are those of who shares prefix or picture with it."""
    request = ask()
    follower, sharer = request.again(" And so on?"), request.beside(" What is it?")
    expected = _bad(ec, damage, request, follower, sharer)
    ec.enforce(ecLoadFailure={"action": "recompute"})

    with ThreadPoolExecutor(2) as senders:
        together = [answer.tokens for answer in senders.map(ec.send, (request, sharer))]

    assert together == [expected[0], expected[2]]
    assert ec.send(follower).tokens == expected[1]
    # The later of the two may have found the item known to be bad, and lost nothing.
    first = until(lambda: _first_decided(ec, request, sharer), "No outcome of either")
    outcome = ec.outcome(first)
    assert (outcome.outcome, outcome.decided_by) == (c.OUTCOME_RECOMPUTED, c.DECIDED_BY_POLICY)
    assert (outcome.channel, outcome.mode) == (c.CHANNEL_EC, c.FAILURE_MODE_LOAD)
    assert outcome.items_recomputed == 1
    assert outcome.error_type == error_type
    assert not ec.events("load_outcome", follower.name)
    # One failed load, told with one of them.
    spans = until(lambda: _spans(ec, "ec.load", request, sharer), "No trace shows the failed load")
    assert {span.status for span in spans} == {"error"}
    assert ec.span_of(first.name, "penstock.recompute").attributes["penstock.items_recomputed"] == "1"


def test_a_file_that_vanished_is_encoded_again(ec: FileBench) -> None:
    """The scheduler saw it and the worker does not; where both are one process, it sees something else."""
    request = ask()
    (expected,) = _bad(ec, ec.vanish, request)
    ec.enforce(ecLoadFailure={"action": "recompute"})

    assert ec.send(request).tokens == expected
    assert ec.outcome(request).outcome == c.OUTCOME_RECOMPUTED


def test_several_pictures(ec: FileBench) -> None:
    """One of two is bad; both are; the same bad one stands twice in a request."""
    one, two = ask(2), ask(2)
    twice = ask()
    twice = twice.again(*(part for part in twice.parts if isinstance(part, Picture)), " And again?")
    before = ec.files()
    ec.encoded(one)
    first = min(ec.files() - before)
    expected_one = ec.encoded(one)
    truncate(first)
    expected_two, expected_twice = _bad(ec, truncate, two), _bad(ec, garble, twice)
    ec.enforce(ecLoadFailure={"action": "recompute"})

    with ThreadPoolExecutor(3) as senders:
        answers = [answer.tokens for answer in senders.map(ec.send, (one, two, twice))]

    assert answers == [*expected_one, *expected_two, *expected_twice]
    # Pictures of different steps are lost one after the other, each with an outcome of its own.
    for request, items in ((one, 1), (two, 2), (twice, 1)):
        ec.closed(request)
        outcomes = [event.load_outcome for event in ec.events("load_outcome", request.name)]
        assert {outcome.outcome for outcome in outcomes} == {c.OUTCOME_RECOMPUTED}
        assert sum(outcome.items_recomputed for outcome in outcomes) == items


def test_fail_is_a_503_and_others_are_served(ec: FileBench) -> None:
    """The bad request's client gets the error; a request beside it is unaffected."""
    request, stranger = ask(), ask()
    expected = _bad(ec, truncate, request, stranger)
    ec.enforce(ecLoadFailure={"action": "fail"})

    with ThreadPoolExecutor(2) as senders:
        failed, served = senders.map(ec.send, (request, stranger))

    assert failed.status == 503
    message = failed.body["error"]["message"]
    assert all(part in message for part in ("EC load failure", "mode load", "can be retried")), message
    assert served.tokens == expected[1]
    assert ec.outcome(request).outcome == c.OUTCOME_FAILED
    ec.enforce(ecLoadFailure={"action": "recompute"})
    assert ec.send(request.again()).tokens == expected[0]


def test_auto_goes_by_the_number_of_items(ec: FileBench) -> None:
    """One is few enough, and then it is not."""
    few, many = ask(), ask()
    (expected,) = _bad(ec, truncate, few)
    _bad(ec, truncate, many)

    ec.enforce(ecLoadFailure={"action": "auto", "maxRecomputeItems": 1})
    assert ec.send(few).tokens == expected
    ec.enforce(ecLoadFailure={"action": "auto", "maxRecomputeItems": 0})
    assert ec.send(many).status == 503
    assert "at most 0" in ec.outcome(many).reason


@pytest.mark.long
def test_random_damage(ec: FileBench) -> None:
    """A few rounds of the soak: whatever happens to which file, the tokens are right."""
    soak = FileSoak(ec, seed=7)
    soak.run(6)
    assert not soak.wrong
    assert soak.counts["rounds"] == 6


def test_without_a_policy_the_engine_ends(ec: FileBench) -> None:
    """VLLM's own behaviour, to the letter: one truncated file ends the engine. The last test, therefore."""
    request = ask()
    _bad(ec, truncate, request)

    assert ec.send(request).status == 500
    with pytest.raises(ChildError):
        ec.engine.child.wait_until(lambda: False, seconds=120, what="serving again")
    assert not ec.engine.child.running
