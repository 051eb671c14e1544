"""agentctl bill, against the real admin service."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING

import pytest
from penstock.agent.bill import SAMPLE_REQUESTS
from penstock.agent.views.bill import bill_table, notes, prefill_words, window_words
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1 import common_pb2 as common

from tests.support.agent.batches import PEER, deferral_end
from tests.support.agent.stories import SECOND, closed, outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

    from tests.support.agent.admin_server import AdminHarness

    Agentctl = Callable[..., Result]

NOW = 1_800_000_000


@pytest.fixture
def failing(harness: AdminHarness) -> AdminHarness:
    """Two engines, two recomputed loads each; one has a price, the other too small a sample."""
    now = time.time_ns()
    for engine in ("0", "1"):
        core = harness.source(engine)
        for number in range(2):
            name = f"{engine}-{number}"
            harness.append(
                core,
                outcome(name, time_ns=now, decided_by=common.DECIDED_BY_VLLM),
                deferral_end(name, start_ns=now - SECOND, time_ns=now),
            )
    harness.append(
        harness.source("0"),
        *(
            closed(f"c{number}", time_ns=now, prompt_tokens=100, gates={"own_prefill_nano": 100_000_000})
            for number in range(SAMPLE_REQUESTS)
        ),
    )
    harness.append(
        harness.source("1"),
        closed("d", time_ns=now, prompt_tokens=4, gates={"own_prefill_nano": 3_548_000_000}),
    )
    return harness


def test_the_table_has_lines_a_total_and_their_basis(failing: AdminHarness, agentctl: Agentctl) -> None:
    """Tokens, prefill seconds of the engine whose price is known, and the waits in vain."""
    lines = agentctl("bill").stdout.splitlines()
    cells = [line.split() for line in lines]
    assert cells[0][:4] == ["ENGINE", "CHANNEL", "PEER", "POLICY"]
    assert ["0", "kv", PEER, "-", "2", "0", "800", "800ms", "-", "-", "2.0s"] in cells
    assert ["1", "kv", PEER, "-", "2", "0", "800", "unknown", "-", "-", "2.0s"] in cells
    assert ["total", "4", "0", "1600", "≥800ms", "-", "-", "4.0s"] in cells
    assert (
        f"peer {PEER} at engine 0: 2 failed loads recomputed (800 tokens), 2 waits in vain (2.0s)." in lines
    )
    assert (
        "A prompt token takes 1.0ms of prefill in engine 0: measured on 5 requests of 500 tokens that computed "
        "their prompt and lost no state." in lines
    )
    assert (
        "The prefill time of 800 tokens is not known in engine 1 (too few: 1 request of 4 tokens): a price takes "
        "5 requests of 100 tokens on average that computed their prompt and lost no state." in lines
    )


def test_the_time_is_the_logs_where_that_is_shorter(failing: AdminHarness, agentctl: Agentctl) -> None:
    """A day that the log does not have is not a day without costs."""
    assert re.search(r"^Costs since the log begins, \ds ago\.$", agentctl("bill").stdout, re.MULTILINE)
    nothing = agentctl("bill", "-l", "role=nobody").stderr
    assert "is recorded since the log begins, " in nothing


@pytest.mark.parametrize(
    ("begun", "words"), [(0, "in the last 24h"), (NOW - 900, "since the log begins, 15m ago")]
)
def test_the_words_of_the_time(begun: int, words: str) -> None:
    """An answer of an older agent has no beginning."""
    bill = admin.Bill()
    if begun:
        bill.log_begins.FromSeconds(begun)
    assert window_words(bill, 86_400, NOW) == words


@pytest.mark.parametrize(
    ("by", "names"), [("peer", [PEER]), ("policy", ["-"]), ("engine", ["0", "1", "total"])]
)
def test_lines_are_grouped(failing: AdminHarness, agentctl: Agentctl, by: str, names: list[str]) -> None:
    """One column says for what; the sums stay."""
    lines = agentctl("bill", "--by", by).stdout.split("\n\n")[0].splitlines()
    assert lines[0].split()[:2] == [by.upper(), "RECOMPUTED"]
    assert [line.split()[0] for line in lines[1:]] == names
    assert lines[-1].split()[1] == "4"


def test_other_formats_have_all(failing: AdminHarness, agentctl: Agentctl) -> None:
    """The wire's JSON, grouped likewise; wide has what seldom occurs."""
    document = json.loads(agentctl("bill", "--by", "peer", "-o", "json").stdout)
    assert [(line["peer"], line["costs"]["tokensRecomputed"]) for line in document["lines"]] == [(PEER, 1600)]
    assert "key" not in document["lines"][0]
    assert document["total"] == document["lines"][0]["costs"]
    assert "tokensUnpriced: 800" in agentctl("bill", "-o", "yaml").stdout
    assert "UNLOADED" in agentctl("bill", "-o", "wide").stdout
    assert "UNLOADED" not in agentctl("bill").stdout


def test_nothing_is_said_where_nothing_is(failing: AdminHarness, agentctl: Agentctl) -> None:
    """On stderr; a document is empty."""
    nothing = agentctl("bill", "-l", "role=nobody")
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert "no failed load, wait or recomputation of the selected engines" in nothing.stderr
    assert json.loads(agentctl("bill", "-l", "role=nobody", "-o", "json").stdout)["lines"] == []


def test_what_is_summed_and_what_is_a_drill_is_named() -> None:
    """Lines that were too many are one line, and a drill is no peer's fault."""
    lines = [
        admin.BillLine(
            peer=PEER, channel=common.CHANNEL_KV, rehearsal=True, policies=["p"], costs={"failed": 1}
        ),
        admin.BillLine(summed=3, costs={"tokens_unloaded": 7, "tokens_unpriced": 7}),
    ]
    total = admin.BillCosts(failed=1, tokens_unloaded=7, tokens_unpriced=7)
    bill = admin.Bill(lines=lines, total=total)
    rows = bill_table(bill, None).rows
    assert rows[0][:4] == ("-", "kv", f"{PEER} (drill)", "p")
    assert rows[1][:4] == ("3 more lines", "-", "3 more lines", "-")
    assert bill_table(bill, "policy").rows[0][0] == "p (drill)"
    assert notes(bill) == [
        f"peer {PEER} by policy p in a drill: 1 request failed.",
        "3 more lines: 7 tokens computed again because no load was begun.",
        (
            "The prefill time of 7 tokens is not known: a price takes 5 requests of 100 tokens on average that computed "
            "their prompt and lost no state."
        ),
    ]


def test_many_engines_are_not_all_listed() -> None:
    """Some prices, and how many more there are."""
    prices = [
        admin.BillPrice(key={"engine": str(number)}, requests=9 * (number % 2), tokens=900 * (number % 2))
        for number in range(10)
    ]
    total = admin.BillCosts(tokens_recomputed=7, tokens_unpriced=3)
    said = notes(admin.Bill(prices=prices, total=total))
    assert said[3] == "2 more of the engines are measured likewise; -o json has them."
    assert (
        "is not known in engines 0 (no request), 2 (no request), 4 (no request) and 2 more: a price"
        in said[4]
    )


@pytest.mark.parametrize(
    ("nano", "unpriced", "words"), [(0, 0, "-"), (0, 5, "unknown"), (10**9, 0, "1.0s"), (10**9, 5, "≥1.0s")]
)
def test_an_unknown_price_is_said(nano: int, unpriced: int, words: str) -> None:
    """It is no zero."""
    costs = admin.BillCosts(tokens_unpriced=unpriced)
    costs.prefill.FromNanoseconds(nano)
    assert prefill_words(costs) == words
