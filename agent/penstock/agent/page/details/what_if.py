"""What a policy would have changed in the last hour: the recorded loads, replayed, in a sentence and a small table."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.page.details.detail import Section, table_section
from penstock.agent.page.wire import AdminCalls, AnswerError
from penstock.agent.views import text
from penstock.agent.views.coverage import missing_agents
from penstock.agent.views.tables import Table
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SECONDS = 5.0
_HOUR = 3_600
_UNKNOWN = "what it would have changed is not known: "
_COLUMNS = ("ENGINE", "LOADS", "FAILED", "RECOMPUTED", "WAITED")


class WhatIf(NamedTuple):
    """What the dry run says of it."""

    sentences: tuple[str, ...]
    sections: tuple[Section, ...]


async def what_if(calls: AdminCalls, manifest_json: str, change: admin.ApplyPolicyResponse) -> WhatIf:
    """Replay the last hour with a policy; no error ends a dry run, and it waits for 5 s at most.

    *change* is the answer to the dry run: its engines are of interest, too, where the policy takes leave of them.
    """
    request = admin.WhatIfRequest(manifests_json=[manifest_json])
    request.since.FromSeconds(_HOUR)
    # A reading that is cancelled ends with its thread: it is not waited for. The service lets few read at a time.
    asked = asyncio.ensure_future(calls.call("WhatIf", request, _SECONDS))
    asked.add_done_callback(_take_error)
    done, _ = await asyncio.wait([asked], timeout=_SECONDS)
    if not done:
        asked.cancel()
        return WhatIf((f"{_UNKNOWN}the replay of the last hour takes longer than {_SECONDS:g} s",), ())
    try:
        answer = asked.result()
    except AnswerError as error:
        return WhatIf((_UNKNOWN + error.sentence,), ())
    found = in_words(answer, change, missing_agents(calls.coverage))
    return (
        found._replace(sentences=(*found.sentences, *_observed(manifest_json))) if found.sections else found
    )


def _observed(manifest_json: str) -> tuple[str, ...]:
    """Return what has to be known of a policy that only observes, which the replay enforces."""
    observes = json.loads(manifest_json).get("spec", {}).get("mode") == "observe"
    return ("The policy is in mode observe; this is what it would do in mode enforce.",) if observes else ()


def _take_error(task: asyncio.Future[object]) -> None:
    """Take the error of a task that may have been given up."""
    if not task.cancelled():
        task.exception()


def in_words(answer: admin.WhatIfResponse, change: admin.ApplyPolicyResponse, missing: str = "") -> WhatIf:
    """Return a replay of the engines that have or change the policy; *missing* says which agents do not answer. Pure."""
    changed = {text.engine(each.key) for each in change.engines}
    engines = [
        each for each in answer.engines if change.name in each.policies or text.engine(each.key) in changed
    ]
    said = [_sentence(engines)]
    unknown = sum(each.would.unknown for each in engines)
    said += [f"Of {unknown} of them it is not known what they would have become."] if unknown else []
    said += (
        [f"The log is longer: only its newest {answer.entries} entries were replayed."]
        if answer.truncated
        else []
    )
    said += (
        [f"{text.count(answer.unreadable_batches, 'batch')} of the log cannot be read."]
        if answer.unreadable_batches
        else []
    )
    said += [f"Agents: {missing}."] if missing else []
    rows: list[tuple[str, ...]] = [
        (
            text.engine(each.key),
            str(each.was.loads),
            _change(each.was.failed, each.would.failed),
            _change(each.was.recomputed, each.would.recomputed),
            _change(_waited(each.was), _waited(each.would)),
        )
        for each in engines
    ]
    table = table_section("The last hour: recorded → with this policy", Table(_COLUMNS, rows))
    return WhatIf(tuple(said), (table,) if rows else ())


def _sentence(engines: Sequence[admin.WhatIfEngine]) -> str:
    def both(value: Callable[[admin.WhatIfCounts], int]) -> tuple[int, int]:
        return sum(value(each.was) for each in engines), sum(value(each.would) for each in engines)

    loads, _ = both(lambda each: each.loads)
    if not loads:
        return "What it would have changed is not known: no remote load of its engines is recorded in the last hour."
    counted = [
        ("failed", both(lambda each: each.failed)),
        ("recomputed", both(lambda each: each.recomputed)),
    ]
    was, would = both(lambda each: each.waited.ToNanoseconds())
    parts = [f"{name} {_change(*values)}" for name, values in counted]
    parts.append(f"waited {_change(_span(was), _span(would))}")
    same = was == would and all(values[0] == values[1] for _, values in counted)
    lead = f"Of the {text.count(loads, 'remote load')} of the last hour"
    return (
        f"{lead} none would have ended otherwise: {', '.join(parts)}."
        if same
        else f"{lead}: {', '.join(parts)}."
    )


def _change(was: object, would: object) -> str:
    return str(was) if was == would else f"{was} → {would}"


def _waited(counts: admin.WhatIfCounts) -> str:
    return _span(counts.waited.ToNanoseconds())


def _span(nano: int) -> str:
    return text.span_of_time(nano / 1e9) if nano else "0s"
