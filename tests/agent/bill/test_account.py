"""The bill of one engine: what each event costs, and what it is charged to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock.agent.bill import BillAccount, Charge, Costs, Price
from penstock.proto import constants as c
from penstock.proto.v1.common_pb2 import DEFERRAL_ENDING_ENGINE_LOST

from tests.support.agent.batches import PEER, TIME, deferral_end, event, transfer_failure
from tests.support.agent.stories import SECOND, closed, outcome

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable

    from penstock.proto.v1.events_pb2 import Event

_HASH = "0123456789abcdef0123"
_DECIDED = Charge(c.CHANNEL_KV, PEER, _HASH, c.DECIDED_BY_POLICY)
_PLAIN = Charge(c.CHANNEL_KV, PEER)
_OTHER = "10.0.0.9:1"


def _charged(*events: Event) -> dict[Charge, Costs]:
    account = BillAccount()
    for each in events:
        account.add(each)
    return account.charges()


def _wait(request: str = "r", *, start: int = TIME, seconds: int = 1, **body: Any) -> Event:
    return deferral_end(request, start_ns=start, time_ns=start + seconds * SECOND, **body)


def test_a_recomputed_load_costs_its_tokens_its_wait_and_its_gate() -> None:
    """All of one request is charged to what was decided, also the wait, which its engine calls ready."""
    found = _charged(
        closed("r", peer={"address": PEER}, gates={"recompute_nano": 7}),
        outcome("r", time_ns=TIME + SECOND),
        _wait(),
    )
    assert found == {
        _DECIDED: Costs(
            recomputed=1, tokens_recomputed=400, recompute_ns=7, waits_in_vain=1, waited_in_vain_ns=SECOND
        )
    }


def test_a_failed_request_loses_tokens_and_recomputes_none() -> None:
    """Its tokens were computed by the other engine, for nothing."""
    failed = outcome("r", c.OUTCOME_FAILED, decided_by=c.DECIDED_BY_VLLM)
    assert _charged(failed) == {
        Charge(c.CHANNEL_KV, PEER, "", c.DECIDED_BY_VLLM): Costs(failed=1, tokens_lost=400)
    }


@pytest.mark.parametrize(
    ("wait", "costs"),
    [
        (_wait(), Costs(waits=1, waited_ns=SECOND)),
        (_wait(ending=c.DEFERRAL_ENDING_ABORTED), Costs(waits_in_vain=1, waited_in_vain_ns=SECOND)),
        (_wait(reason=c.DEFERRAL_REASON_GRAMMAR), None),
        (_wait(ending=DEFERRAL_ENDING_ENGINE_LOST), None),
        (deferral_end("r", start_ns=0), None),
    ],
    ids=["ready", "aborted", "of a grammar", "of an engine that vanished", "without a start"],
)
def test_a_wait_without_a_failure_is_its_peers(wait: Event, costs: Costs | None) -> None:
    """A wait for something else, and one whose length is not known, costs nothing."""
    assert _charged(wait) == ({} if costs is None else {_PLAIN: costs})


def test_a_load_that_a_quarantine_refused_ends_no_wait() -> None:
    """The request waited for something else then."""
    found = _charged(outcome("r", decided_by=c.DECIDED_BY_QUARANTINE, time_ns=TIME + SECOND), _wait())
    assert found[_PLAIN] == Costs(waits=1, waited_ns=SECOND)
    assert found[_DECIDED._replace(decided_by=c.DECIDED_BY_QUARANTINE)].waits_in_vain == 0


def test_a_load_that_a_reflex_left_out_ends_no_wait_either() -> None:
    """One that it gave up does."""
    for reason, waits in (
        ("the peer is slow; reflexes.slowPeer: its loads take 3 s", 0),
        ("the wait was dearer than computing; reflexes.startWait: 3 s waited", 1),
    ):
        found = _charged(
            outcome("r", decided_by=c.DECIDED_BY_REFLEX, reason=reason, time_ns=TIME + SECOND), _wait()
        )
        assert found[_DECIDED._replace(decided_by=c.DECIDED_BY_REFLEX)].waits_in_vain == waits


def test_each_failure_ends_one_wait() -> None:
    """Of two waits of a request the newest that had begun; the later one got its state."""
    found = _charged(
        _wait(start=TIME, seconds=1),
        outcome("r", time_ns=TIME + SECOND),
        _wait(start=TIME + 2 * SECOND, seconds=3),
    )
    assert found[_DECIDED].waited_in_vain_ns == SECOND
    assert found[_PLAIN] == Costs(waits=1, waited_ns=3 * SECOND)


def test_what_another_peer_caused_is_charged_to_it() -> None:
    """A victim's failure, and the part of a wait that was spent behind another's handshake."""
    collateral: dict[str, Any] = {"mode": c.FAILURE_MODE_COLLATERAL, "caused_by_peer": {"address": _OTHER}}
    found = _charged(
        outcome("v", mode=c.FAILURE_MODE_COLLATERAL),
        transfer_failure("v", **collateral),
        _wait("d", seconds=3),
        event(
            "transfer_delayed",
            "d",
            channel=c.CHANNEL_KV,
            peer={"address": PEER},
            caused_by_peer={"address": _OTHER},
            delay_nano=2 * SECOND,
        ),
    )
    assert found == {
        _DECIDED._replace(peer=_OTHER): Costs(recomputed=1, tokens_recomputed=400),
        _PLAIN._replace(peer=_OTHER): Costs(waited_ns=2 * SECOND),
        _PLAIN: Costs(waits=1, waited_ns=SECOND),
    }


def test_what_was_never_loaded_and_what_has_no_decision_is_the_peers() -> None:
    """Tokens of a prompt that a router sent without transfer parameters' load; a recomputation whose cause is older."""
    end = closed("r", peer={"address": PEER}, unloaded_tokens=100, gates={"recompute_nano": 7})
    assert _charged(end) == {_PLAIN: Costs(tokens_unloaded=100, recompute_ns=7)}


def test_a_drill_is_charged_apart() -> None:
    """Nobody's peer is to blame for it."""
    drilled = outcome("r")
    drilled.rehearsal = True
    assert list(_charged(drilled)) == [_DECIDED._replace(rehearsal=True)]


def test_nothing_is_charged_for_a_load_that_is_tried_again() -> None:
    """What becomes of it is decided later."""
    assert _charged(outcome("r", c.OUTCOME_RETRIED)) == {}


def test_a_token_costs_what_whole_requests_took() -> None:
    """Of the prompt without what was cached and loaded; loaded, recomputed and preempted requests are no measure."""
    account = BillAccount()
    assert account.price.of(1) is None
    prefill = {"own_prefill_nano": 1_200}
    account.add(
        closed("a", prompt_tokens=30, local_cached_tokens=10, external_cached_tokens=4, gates=prefill)
    )
    account.add(closed("b", prompt_tokens=30, preemptions=1, gates=prefill))
    account.add(closed("c", prompt_tokens=30, gates={**prefill, "recompute_nano": 1}))
    account.add(closed("d", prompt_tokens=30, first_token_time_unix_nano=0, gates=prefill))
    account.add(closed("e", prompt_tokens=30, external_cached_tokens=29, gates=prefill))
    assert (account.price.requests, account.price.tokens) == (1, 16)


@pytest.mark.parametrize(
    ("requests", "tokens", "known"),
    [(0, 0, False), (1, 4, False), (4, 4_000, False), (5, 499, False), (300, 1_200, False), (5, 500, True)],
)
def test_a_price_takes_a_sample(requests: int, tokens: int, known: bool) -> None:
    """Enough requests, and of prompts that are long enough: many short ones tell of steps, not of tokens."""
    price = Price(requests, tokens, 1_000 * tokens)
    assert (price.is_known, price.of(7)) == (known, 7_000 if known else None)


_PEERS = st.sampled_from([PEER, _OTHER])


@st.composite
def _stories(draw: st.DrawFn) -> list[Event]:
    """Draw the events of one request."""
    name = f"r{draw(st.integers(0, 10**9))}"
    peer, start = draw(_PEERS), TIME + draw(st.integers(0, 100)) * SECOND
    end = start + draw(st.integers(0, 5)) * SECOND
    kinds = draw(st.sets(st.sampled_from(["wait", "outcome", "closed", "delay", "victim"])))
    found = []
    if "wait" in kinds:
        ending = draw(st.sampled_from([c.DEFERRAL_ENDING_READY, c.DEFERRAL_ENDING_ABORTED]))
        found.append(deferral_end(name, peer=peer, start_ns=start, time_ns=end, ending=ending))
    if "outcome" in kinds:
        decided = draw(st.sampled_from([c.DECIDED_BY_POLICY, c.DECIDED_BY_VLLM, c.DECIDED_BY_QUARANTINE]))
        kind = draw(st.sampled_from([c.OUTCOME_RECOMPUTED, c.OUTCOME_FAILED]))
        mode = c.FAILURE_MODE_COLLATERAL if "victim" in kinds else c.FAILURE_MODE_HANDSHAKE
        tokens = draw(st.integers(0, 1_000))
        found.append(
            outcome(
                name, kind, time_ns=end, decided_by=decided, mode=mode, peer={"address": peer},
                tokens_recomputed=tokens,
            )
        )  # fmt: skip
    if "closed" in kinds:
        gates = {"recompute_nano": draw(st.integers(0, 10)), "own_prefill_nano": draw(st.integers(0, 10))}
        unloaded = draw(st.integers(0, 10))
        found.append(closed(name, peer={"address": peer}, gates=gates, unloaded_tokens=unloaded))
    other = {"address": draw(_PEERS)}
    if "delay" in kinds:
        delay = draw(st.integers(0, 10)) * SECOND
        found.append(
            event("transfer_delayed", name, peer={"address": peer}, caused_by_peer=other, delay_nano=delay)
        )
    if "victim" in kinds:
        found.append(transfer_failure(name, mode=c.FAILURE_MODE_COLLATERAL, caused_by_peer=other))
    return found


def _total(events: Iterable[Event]) -> Costs:
    total = Costs()
    for costs in _charged(*events).values():
        total.add(costs)
    return total


def _measured(costs: Costs) -> tuple[int, ...]:
    """Return the amounts, those of waits without whether they were in vain: the failure may be in the other window."""
    return (
        costs.recomputed, costs.failed, costs.tokens_recomputed, costs.tokens_lost, costs.tokens_unloaded,
        costs.recompute_ns, costs.waits + costs.waits_in_vain, costs.waited_ns + costs.waited_in_vain_ns,
    )  # fmt: skip


@given(st.lists(_stories(), max_size=12), st.integers(0, 60), st.randoms(use_true_random=False))
def test_the_bills_of_two_times_add_up(stories: list[list[Event]], cut: int, order: random.Random) -> None:
    """Wherever the time is cut, nothing is lost and nothing counts twice; the order of events does not matter."""
    events = [each for story in stories for each in story]
    whole = _total(events)
    order.shuffle(events)
    assert _total(events) == whole
    first, second = _total(events[:cut]), _total(events[cut:])
    first.add(second)
    assert _measured(first) == _measured(whole)


@given(st.lists(_stories(), max_size=8), st.integers(0, 8))
def test_whole_requests_add_up_exactly(stories: list[list[Event]], cut: int) -> None:
    """Where no request is cut, each charge is the sum of both, with its policy."""
    names = {each.request_id for story in stories for each in story}
    if len(names) < sum(bool(story) for story in stories):
        return
    parts = [_charged(*(each for story in part for each in story)) for part in (stories[:cut], stories[cut:])]
    whole = _charged(*(each for story in stories for each in story))
    for charge in {*parts[0], *parts[1], *whole}:
        both = Costs()
        for part in parts:
            both.add(part.get(charge, Costs()))
        assert both == whole.get(charge, Costs()), charge
