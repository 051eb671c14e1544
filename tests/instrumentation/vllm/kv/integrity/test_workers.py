"""Verified transfers between real NIXL workers: equal and unequal ranks, pull and push, good and damaged."""

from __future__ import annotations

import random
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from penstock.instrumentation.core import constants as c
from penstock.instrumentation.vllm.kv.integrity.block_digests import LoadCheck, check_load
from penstock.instrumentation.vllm.kv.integrity.transfer_digest import join_ranks
from penstock.instrumentation.vllm.kv.nixl import verification
from penstock.instrumentation.vllm.messages import DigestOrder, GroupBlocks, VerifyOrder

from tests.support.engine.recorder import recording
from tests.support.engine.schedulers import BLOCK
from tests.support.kv.nixl_pair import Engine, instrumented_engines, prepare
from tests.support.kv.nixl_ranks import engine_of, lease

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.support.engine.recorder import Recorder

    MakeEngine = Callable[..., Engine]

REMOTE, LOCAL = (4, 5, 6), (1, 2, 3)
GOOD_TRANSFERS = (300, pytest.param(100_000, marks=[pytest.mark.long, pytest.mark.timeout(7200)]))
OVERWRITTEN = 40


@pytest.fixture(scope="module")
def make_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeEngine]:
    """Build instrumented engines, which live until the module is done."""
    with pytest.MonkeyPatch.context() as monkeypatch, recording(monkeypatch):
        directory = tmp_path_factory.mktemp("nixl")
        prepare(monkeypatch, directory)
        with instrumented_engines(directory, monkeypatch) as make:
            yield make


@pytest.fixture(scope="module")
def one_to_one(make_engine: MakeEngine) -> tuple[list[Engine], list[Engine]]:
    """Build a prefill and a decode engine of one rank."""
    return [make_engine("kv_producer")], [make_engine("kv_consumer")]


def digest_of(prefill: Sequence[Engine], request_id: str, tail: int = BLOCK, covered: int = 3) -> Any:
    """Let each rank of the prefill engine digest the blocks of a request; return what is sent to its reader."""
    groups = (GroupBlocks(REMOTE[-covered:], tail),)
    order = (DigestOrder(f"prefill-of-{request_id}", groups),)
    answers = [rank.order(penstock_digest=order) for rank in prefill]
    ranks = [each for _, _, report in answers for each in report.digests]
    return join_ranks(ranks, [len(REMOTE)], groups)


def transfer(
    prefill: Sequence[Engine],
    decode: Sequence[Engine],
    request_id: str,
    *,
    damage: Callable[[Engine], None] | None = None,
    enforce: bool = True,
    local: Sequence[int] = LOCAL,
    **digest: int,
) -> list[Any]:
    """Let the decode ranks read a digested request, which is damaged on the way; return each rank's answer."""
    for rank in prefill:
        rank.cache.uniform_()
    sent = digest_of(prefill, request_id, **digest)
    lease(request_id, prefill)
    if damage is not None:
        damage(prefill[0])
    for rank in decode:
        order = (VerifyOrder(request_id, sent, enforce),)
        rank.read(request_id, prefill[0], local=local, penstock_verify=order)
    return [rank.received(request_id) for rank in decode]


def flip(engine: Engine, block: int = REMOTE[1]) -> None:
    """Change one bit of the first layer's cache."""
    engine.cache.view(dtype=engine.cache.dtype)[block, 0, 3, 5] *= -1


def swap(engine: Engine) -> None:
    """Put two blocks in each other's place, as a wrong descriptor does."""
    first, second = REMOTE[:2]
    engine.cache[[first, second]] = engine.cache[[second, first]]


def zero(engine: Engine) -> None:
    """Clear a block, as one that was freed and allocated again."""
    engine.cache[REMOTE[2]] = 0


@pytest.mark.parametrize("transfers", GOOD_TRANSFERS)
def test_many_good_transfers(
    one_to_one: tuple[list[Engine], list[Engine]], recorder: Recorder, transfers: int
) -> None:
    """None is a false alarm, with other content each time."""
    prefill, decode = one_to_one
    for number in range(transfers):
        request_id = f"good-{number}"
        (answer,) = transfer(prefill, decode, request_id, tail=1 + number % BLOCK)
        assert answer[0].finished_recving == {request_id}
        assert not answer[0].failed_recving
        (checked,) = decode[0].checked
        assert (checked.transferred, checked.compared, checked.mismatched) == (3, 3, 0)
        assert checked.reason == ""
    assert not recorder.take("transfer_failure", "")


@pytest.mark.parametrize("damage", [flip, swap, zero])
@pytest.mark.parametrize("enforce", [True, False])
def test_damage(
    one_to_one: tuple[list[Engine], list[Engine]],
    recorder: Recorder,
    damage: Callable[[Engine], None],
    enforce: bool,
) -> None:
    """What differs is a corrupt transfer: a failed load under enforce, a report only under observe."""
    prefill, decode = one_to_one
    request_id = f"{damage.__name__}-{enforce}"
    ((results, invalid, report),) = transfer(prefill, decode, request_id, damage=damage, enforce=enforce)
    assert results.finished_recving == {request_id}
    assert results.failed_recving == ({request_id} if enforce else set())
    assert invalid == (set(LOCAL) if enforce else set())
    assert [each.error_type for each in report.failures] == ([c.ERROR_TYPE_CORRUPT] if enforce else [])
    (checked,) = report.checked
    wrong = 2 if damage is swap else 1
    assert (checked.compared, checked.mismatched) == (3, wrong)
    (failure,) = recorder.take("transfer_failure", request_id)
    assert (failure.mode, failure.error_type) == (c.FAILURE_MODE_TRANSFER, c.ERROR_TYPE_CORRUPT)
    assert (failure.compared, failure.mismatched, failure.used) == (3, wrong, not enforce)
    assert failure.peer.address == prefill[0].address
    assert failure.error_text == f"{wrong} of 3 compared blocks differ from the sender's digest"


def _differ(sender: torch.Tensor, reader: Engine) -> int:
    """Return how many blocks of a reader differ from those that its sender had digested."""
    pairs = zip(sender[list(REMOTE)], reader.cache[list(LOCAL)], strict=True)
    return sum(not torch.equal(theirs, ours) for theirs, ours in pairs)


def test_blocks_that_are_overwritten_meanwhile(one_to_one: tuple[list[Engine], list[Engine]]) -> None:
    """Whenever it happens, before, during or after the read: exactly the blocks that arrived wrong are found."""
    prefill, decode = one_to_one
    sender, chance = prefill[0], random.Random(5)
    found = []
    for number in range(OVERWRITTEN):
        request_id = f"meanwhile-{number}"
        sender.cache.uniform_()
        before = sender.cache.clone()
        sent = digest_of(prefill, request_id)
        lease(request_id, prefill)
        # The first is overwritten before the read, the last after it, the others at any time.
        if number == 0:
            flip(sender)
        later = threading.Timer(chance.uniform(0, 0.004), flip, (sender, chance.choice(REMOTE)))
        if 0 < number < OVERWRITTEN - 1:
            later.start()
        decode[0].read(
            request_id, sender, local=LOCAL, penstock_verify=(VerifyOrder(request_id, sent, enforce=True),)
        )
        results, _, _ = decode[0].received(request_id)
        if later.ident is not None:
            later.join()
        flip(sender)
        (checked,) = decode[0].checked
        assert (checked.compared, checked.mismatched) == (3, _differ(before, decode[0]))
        assert bool(results.failed_recving) is bool(checked.mismatched)
        found.append(checked.mismatched)
    assert (found[0], found[-1]) == (1, 0)


def test_a_block_that_is_overwritten_where_it_arrived(
    one_to_one: tuple[list[Engine], list[Engine]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the end of the read and the comparison, as by a block that was given to two requests."""
    prefill, decode = one_to_one
    reader = decode[0]

    def overwritten(*arguments: Any) -> LoadCheck:
        flip(reader, LOCAL[0])
        return check_load(*arguments)

    monkeypatch.setattr(verification, "check_load", overwritten)
    ((results, invalid, _),) = transfer(prefill, decode, "on-arrival")
    assert results.failed_recving == {"on-arrival"}
    assert invalid == set(LOCAL)
    (checked,) = reader.checked
    assert (checked.compared, checked.mismatched) == (3, 1)


def test_what_the_digest_does_not_cover_is_unverified(one_to_one: tuple[list[Engine], list[Engine]]) -> None:
    """Of a long request the last blocks are compared; damage before them is not found, and not called verified."""
    prefill, decode = one_to_one
    transfer(prefill, decode, "long", covered=1, damage=flip)
    (checked,) = decode[0].checked
    assert (checked.transferred, checked.compared, checked.mismatched) == (3, 1, 0)
    assert "does not cover" in checked.reason


def test_a_local_prefix_is_not_transferred(one_to_one: tuple[list[Engine], list[Engine]]) -> None:
    """Only the blocks behind it are read and compared, the sender's last ones."""
    prefill, decode = one_to_one
    transfer(prefill, decode, "prefix", local=LOCAL[:2])
    (checked,) = decode[0].checked
    assert (checked.transferred, checked.compared, checked.mismatched) == (2, 2, 0)


@pytest.mark.parametrize(("senders", "readers"), [(2, 1), (1, 2), (2, 2)])
def test_tensor_parallel_ranks(make_engine: MakeEngine, senders: int, readers: int) -> None:
    """The digests of the ranks are by KV head, so that each reader finds those of its own heads."""
    prefill = engine_of(make_engine, "kv_producer", senders)
    decode = engine_of(make_engine, "kv_consumer", readers)
    answers = transfer(prefill, decode, "good")
    assert not any(results.failed_recving for results, _, _ in answers)
    found = [(each.compared, each.mismatched) for rank in decode for each in rank.checked]
    assert found == [(3, 0)] * readers
    # The damaged head is the first one's.
    answers = transfer(prefill, decode, "bad", damage=flip)
    assert [bool(results.failed_recving) for results, _, _ in answers] == [True] + [False] * (readers - 1)


def _has_come(request_id: str, _: Any, theirs: Any) -> bool:
    return request_id in theirs[0].finished_recving


def test_push(make_engine: MakeEngine) -> None:
    """What a prefill engine has written is compared as what was read."""
    push = {"connector": "NixlPushConnector"}
    prefill, decode = make_engine("kv_producer", **push), make_engine("kv_consumer", **push)
    for name, damage in (("good", None), ("bad", flip)):
        sender, reader = f"{name}-0000000f", f"{name}-0000000d"
        sent = digest_of([prefill], sender)
        if damage is not None:
            damage(prefill)
        decode.await_push(reader, prefill, penstock_verify=(VerifyOrder(reader, sent, enforce=True),))
        prefill.push(sender)
        prefill.both_until(decode, partial(_has_come, reader), "the write")
        (checked,) = decode.checked
        assert (checked.compared, bool(checked.mismatched)) == (3, damage is not None)
