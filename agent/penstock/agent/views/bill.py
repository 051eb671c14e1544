"""The table of a bill, and the sentences below it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.agent.badness import NO_SERVERS
from penstock.agent.bill import SAMPLE_REQUESTS, SAMPLE_TOKENS, Price
from penstock.agent.views import text
from penstock.agent.views.tables import Table
from penstock.agent.views.text import duration
from penstock.proto.v1.common_pb2 import Channel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.proto.v1 import admin_pb2 as admin

# Lines that have a sentence of their own.
_SENTENCES = 3


def bill_table(bill: admin.Bill, by: str | None) -> Table:
    """Return the lines of *bill* and, for several, their total; the columns before the amounts say what a line is for.

    Args:
        bill: its lines are grouped by *by*.
        by: ``peer``, ``policy`` or ``engine``; None for lines of all three and the channel.

    """
    names = (by.upper(),) if by is not None else ("ENGINE", "CHANNEL", "PEER", "POLICY")
    rows = [(*_names(line, by), *_amounts(line.costs)) for line in bill.lines]
    if len(rows) > 1:
        rows.append(("total", *("" for _ in names[1:]), *_amounts(bill.total)))
    headers = (
        *names, "RECOMPUTED", "FAILED", "TOKENS", "PREFILL", "RECOMPUTE-GATE", "WAITED", "IN-VAIN",
        "ITEMS", "LOST", "UNLOADED", "WAITS", "WAITS-IN-VAIN",
    )  # fmt: skip
    return Table(headers, rows, wide=5)


def notes(bill: admin.Bill) -> list[str]:
    """Return the sentences below the table: the most expensive lines, and what the prefill seconds are based on."""
    expensive = [line for line in bill.lines if _costs_something(line.costs)]
    return [*(_sentence(line) for line in expensive[:_SENTENCES]), *_prices(bill)]


def window_words(bill: admin.Bill, since: float, now: float) -> str:
    """Return which time *bill* is of: ``in the last 24h``, or since when the log tells of it.

    Args:
        bill: as the agent returned it.
        since: seconds that were asked for.
        now: seconds.

    """
    if bill.HasField("log_begins"):
        return f"since the log begins, {text.ago_of(bill.log_begins, now)}"
    return f"in the last {text.age(since)}"


def _names(line: admin.BillLine, by: str | None) -> tuple[str, ...]:
    drill = " (drill)" if line.rehearsal else ""
    rest = text.count(line.summed, "more line") if line.summed else text.NONE
    found = {
        "engine": text.engine(line.key) if line.HasField("key") else rest,
        "channel": text.word(Channel, line.channel) if line.channel else text.NONE,
        "peer": (line.peer or rest) + drill,
        "policy": ", ".join(line.policies) or text.NONE,
    }
    if by is None:
        return tuple(found.values())
    return (found[by] + drill if by != "peer" else found[by],)


def _amounts(costs: admin.BillCosts) -> tuple[str, ...]:
    return (
        str(costs.recomputed),
        str(costs.failed),
        str(costs.tokens_recomputed + costs.tokens_unloaded),
        prefill_words(costs),
        duration(costs.recompute),
        duration(costs.waited),
        duration(costs.waited_in_vain),
        str(costs.items_recomputed),
        str(costs.tokens_lost),
        str(costs.tokens_unloaded),
        str(costs.waits),
        str(costs.waits_in_vain),
    )


def prefill_words(costs: admin.BillCosts) -> str:
    """Return the prefill time: ``-`` without tokens, ``unknown`` without a price, ``≥3.4s`` where tokens have none."""
    known = costs.prefill.ToNanoseconds()
    if not costs.tokens_unpriced:
        return duration(costs.prefill)
    return f"≥{duration(costs.prefill)}" if known else "unknown"


def _costs_something(costs: admin.BillCosts) -> bool:
    return bool(costs.recomputed or costs.failed or costs.tokens_unloaded or costs.waits_in_vain)


def _sentence(line: admin.BillLine) -> str:
    costs = line.costs
    parts = []
    if costs.recomputed:
        parts.append(
            f"{text.count(costs.recomputed, 'failed load')} recomputed ({text.count(costs.tokens_recomputed, 'token')})"
        )
    if costs.failed:
        parts.append(f"{text.count(costs.failed, 'request')} failed")
    if costs.tokens_unloaded:
        parts.append(f"{text.count(costs.tokens_unloaded, 'token')} computed again because no load was begun")
    if costs.waits_in_vain:
        parts.append(f"{text.count(costs.waits_in_vain, 'wait')} in vain ({duration(costs.waited_in_vain)})")
    return f"{_subject(line)}: {', '.join(parts)}."


def _subject(line: admin.BillLine) -> str:
    found = []
    if line.peer:
        found.append(NO_SERVERS.get(line.peer) or f"peer {line.peer}")
    if line.HasField("key"):
        found.append(f"at engine {text.engine(line.key)}" if found else f"engine {text.engine(line.key)}")
    if line.policies:
        found.append(f"by policy {', '.join(line.policies)}")
    if line.rehearsal:
        found.append("in a drill")
    return " ".join(found) or (f"{text.count(line.summed, 'more line')}" if line.summed else "no policy")


def _prices(bill: admin.Bill) -> Iterator[str]:
    total = bill.total
    if not total.tokens_recomputed and not total.tokens_unloaded:
        return
    known = [price for price in bill.prices if _price(price).is_known]
    for price in known[:_SENTENCES]:
        each = price.prefill.ToNanoseconds() / 1e9 / price.tokens
        yield (
            f"A prompt token takes {text.span_of_time(each)} of prefill in engine {text.engine(price.key)}: measured on "
            f"{_sample(price)} that computed their prompt and lost no state."
        )
    if len(known) > _SENTENCES:
        yield f"{len(known) - _SENTENCES} more of the engines are measured likewise; -o json has them."
    if total.tokens_unpriced:
        unknown = [price for price in bill.prices if not _price(price).is_known]
        named = [
            f"{text.engine(price.key)} (too few: {_sample(price)})"
            if price.requests
            else f"{text.engine(price.key)} (no request)"
            for price in unknown[:_SENTENCES]
        ]
        more = f" and {len(unknown) - _SENTENCES} more" if len(unknown) > _SENTENCES else ""
        where = f" in engine{'s' if len(unknown) > 1 else ''} {', '.join(named)}{more}" if named else ""
        yield (
            f"The prefill time of {text.count(total.tokens_unpriced, 'token')} is not known{where}: a price takes "
            f"{SAMPLE_REQUESTS} requests of {SAMPLE_TOKENS} tokens on average that computed their prompt and lost no state."
        )


def _price(message: admin.BillPrice) -> Price:
    return Price(message.requests, message.tokens, message.prefill.ToNanoseconds())


def _sample(price: admin.BillPrice) -> str:
    return f"{text.count(price.requests, 'request')} of {text.count(price.tokens, 'token')}"
