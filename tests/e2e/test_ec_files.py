"""vLLM's ECExampleConnector with bad files: what a policy makes of them, and vLLM without one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from penstock.proto.v1 import common_pb2 as c

from tests.support.ec_bench import ask
from tests.support.ec_files import FileBench, fewer_rows, garble, truncate, wider
from tests.support.ec_stacks import file_bench
from tests.support.engines import CPU_DEFAULTS, UNI

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.ec_bench import Ask

pytestmark = [
    pytest.mark.engine,
    pytest.mark.parametrize("served", [CPU_DEFAULTS, UNI], indirect=True, ids=["cpu", "uni"]),
]


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileBench]:
    """Run agent and server."""
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


@pytest.mark.parametrize(
    ("damage", "error_type"),
    [
        (truncate, c.ERROR_TYPE_CORRUPT),
        (garble, c.ERROR_TYPE_CORRUPT),
        (fewer_rows, c.ERROR_TYPE_CORRUPT),
        (wider, c.ERROR_TYPE_CORRUPT),
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
    outcome = ec.outcome(request)
    assert (outcome.outcome, outcome.decided_by) == (c.OUTCOME_RECOMPUTED, c.DECIDED_BY_POLICY)
    assert (outcome.channel, outcome.mode) == (c.CHANNEL_EC, c.FAILURE_MODE_LOAD)
    assert outcome.items_recomputed == 1
    assert outcome.error_type == error_type
    assert not ec.events("load_outcome", follower.name)
    assert ec.span_of(request.name, "ec.load").status == "error"
    assert ec.span_of(request.name, "penstock.recompute").attributes["penstock.items_recomputed"] == "1"
