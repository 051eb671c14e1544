"""``agentctl recommend``: the policy whose replay is best, with its evidence."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click
from penstock.agent.ctl.commands.inspect.recommendation import (
    NAME,
    Recommendation,
    document,
    evidence_lines,
    manifest,
    selector_of_engines,
    unknown_of_engines,
    unknown_of_replay,
)
from penstock.agent.ctl.moments import current_time
from penstock.agent.ctl.options import DURATION, duration_message, engine_selector, with_client, with_selector
from penstock.agent.ctl.output import say_document
from penstock.agent.ctl.printing import is_table, say, with_output
from penstock.agent.replay import (
    MAX_REPLAYS,
    MIN_LOADS,
    Counts,
    Note,
    Seen,
    Trial,
    is_better,
    is_harmless,
    search,
)
from penstock.agent.views import text
from penstock.proto.deferral_channels import LOAD_CHANNELS
from penstock.proto.v1 import admin_pb2 as admin
from penstock.proto.v1.common_pb2 import CHANNEL_EC, CHANNEL_KV, DEFERRAL_ENDING_READY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from google.protobuf.duration_pb2 import Duration
    from penstock.agent.ctl.connection.client import Client
    from penstock.agent.replay import Found, Value
    from penstock.proto.v1.events_pb2 import Event

# Seconds: of one replay, as of what-if; of the search; between two lines of progress.
_DEADLINE, _SEARCH_SECONDS, _PROGRESS_SECONDS = 30.0, 60.0, 5.0
_KINDS: Final = ("load_outcome", "deferral_end", "request_closed")
_MOST_EVENTS: Final = 10_000
_HINT = "'agentctl recommend -o yaml' with the same options prints the manifest for 'agentctl apply -f -'"


@click.command()
@click.option(
    "--since",
    type=DURATION,
    default="24h",
    show_default=True,
    help="Replay the loads of the last 10m, 2h, ...",
)
@with_selector
@with_output()
@with_client
def recommend(client: Client, since: timedelta, selector: str, output: str) -> None:
    """Search the policy under which the recorded loads would have failed and waited least.

    Candidates are replayed as by 'what-if', on top of the agent's policies: fewest failed loads first, then the least
    waiting, then the fewest recomputed tokens. -o yaml prints a manifest in mode observe for 'apply', with the evidence
    as comments; without a better candidate it prints nothing. Nothing is changed.
    """
    shown = _Recommending(client, since, selector).result()
    if is_table(output):
        hint = ("", client.hinted(_HINT)) if shown.manifest is not None else ()
        say(shown.sentence, "", *evidence_lines(shown), *hint)
    elif output != "yaml":
        say_document(document(shown), output)
    elif shown.manifest is None:
        say(shown.sentence, err=True)
    else:
        say(*(f"# {line}".rstrip() for line in (shown.sentence, "", *evidence_lines(shown))))
        say_document(shown.manifest, output)


class _Recommending:
    """The questions of one search, and what they were answered."""

    def __init__(self, client: Client, since: timedelta, selector: str) -> None:
        self._client = client
        self._since = since
        self._selector = selector
        # A bundle's clock stands still.
        self._start = current_time() - since.total_seconds()
        self._began = self._told = time.monotonic()
        self._answers: dict[str, admin.WhatIfResponse] = {}
        self._loads = 0

    def result(self) -> Recommendation:
        """Replay today's policies, and candidates if there are loads enough."""
        answer = self._replay()
        recorded, today = _total(answer, "was"), _trial({}, answer)
        self._loads = recorded.loads
        engines = self._client.call(
            "ListEngines", admin.ListEnginesRequest(selector=engine_selector(self._selector))
        ).engines
        events = self._events()
        loads = [each for each in events.events if _is_of_a_load(each.event)]
        found = chosen = best = None
        moved = False
        if recorded.loads >= MIN_LOADS:
            name, priorities = self._place()
            selector = self._selector or selector_of_engines(engines, answer)
            made = partial(manifest, name=name, selector=selector, priorities=priorities)
            found = search(today, _seen(loads), lambda fields: self._try(fields, made(fields)))
            moved = any(_total(each, "was") != recorded for each in self._answers.values())
            if found.best is not None and moved and not self._holds(made(found.best.fields)):
                found = replace(found, best=None)
            if found.best is not None:
                best = self._answers[json.dumps(made(found.best.fields))]
                reason = f"agentctl recommend, from {today.counts.loads} recorded loads"
                chosen = made(found.best.fields, reason=reason)
        times = [each.event.time_unix_nano for each in loads]
        whole = bool(times) and not events.truncated
        return Recommendation(
            since=self._since,
            first_ns=min(times) if whole else None,
            last_ns=max(times) if whole else None,
            requests=len({_request(each) for each in loads}) if whole else None,
            recorded=recorded,
            today=today.counts,
            found=found,
            manifest=chosen,
            unknown=(
                *unknown_of_replay(answer, best, today.counts),
                *unknown_of_engines(engines, answer),
                *_unknown_of_search(found, chosen, moved=moved),
                *([self._client.missing] if self._client.missing else ()),
            ),
        )

    def _window(self) -> Duration:
        """Return the time since the window's start, which stays while the log grows."""
        return duration_message(timedelta(seconds=max(0.0, current_time() - self._start)))

    def _events(self) -> admin.ListEventsResponse:
        request = admin.ListEventsRequest(
            kinds=_KINDS,
            since=self._window(),
            limit=_MOST_EVENTS,
            selector=engine_selector(self._selector),
        )
        answer: admin.ListEventsResponse = self._client.call("ListEvents", request, _DEADLINE)
        return answer

    def _try(self, fields: Mapping[str, Value], candidate: dict[str, Any]) -> Trial | None:
        now = time.monotonic()
        if now - self._began > _SEARCH_SECONDS:
            return None
        if now - self._told > _PROGRESS_SECONDS:
            self._told = now
            say(f"{len(self._answers)} of at most {MAX_REPLAYS} candidates replayed", err=True)
        written = json.dumps(candidate)
        self._answers[written] = self._replay(written)
        return _trial(fields, self._answers[written], self._loads)

    def _holds(self, candidate: dict[str, Any]) -> bool:
        """Return whether a candidate is better on the log of now, too: what came since may be why it looked better."""
        today = _trial({}, self._replay())
        again = _trial({}, self._replay(json.dumps(candidate)), today.counts.loads)
        return is_harmless(again, today) and is_better(again, today, today)

    def _replay(self, *manifests: str) -> admin.WhatIfResponse:
        request = admin.WhatIfRequest(
            manifests_json=manifests,
            since=self._window(),
            selector=engine_selector(self._selector),
        )
        answer: admin.WhatIfResponse = self._client.call("WhatIf", request, _DEADLINE)
        return answer

    def _place(self) -> tuple[str, list[int]]:
        """Return a name that no policy in force has, and the priorities of today's policies."""
        taken, priorities = set(), []
        for each in self._client.call("ListPolicies", admin.ListPoliciesRequest()).policies:
            spec = json.loads(each.manifest_json)["spec"]
            if each.name.startswith(NAME) and spec.get("mode") == "observe":
                continue
            taken.add(each.name)
            priorities.append(spec.get("priority", 100))
        names = (NAME if number == 1 else f"{NAME}-{number}" for number in range(1, len(taken) + 2))
        return next(name for name in names if name not in taken), priorities


def _unknown_of_search(
    found: Found | None, chosen: Mapping[str, Any] | None, *, moved: bool
) -> Iterator[str]:
    if moved:
        yield "the exact gain: loads came during the search, and later candidates were replayed with them"
    if found is not None and not found.complete:
        yield (
            f"what other candidates bring: the search ended after {text.count(len(found.trials), 'candidate')}, "
            f"as it does after {MAX_REPLAYS}, or after {_SEARCH_SECONDS:.0f} s"
        )
    if chosen is not None and "peerQuarantine" in chosen["spec"]:
        yield "what the quarantine does live: mode observe does not simulate it"


def _request(logged: admin.LoggedEvent) -> tuple[str, str, str, str]:
    return logged.agent, logged.key.server, logged.key.engine, logged.event.request_id


def _trial(fields: Mapping[str, Value], answer: admin.WhatIfResponse, loads: int = 0) -> Trial:
    """Return a replay; what it lacks of *loads*, as an agent of a relay did not answer, is not known."""
    notes = (note for engine in answer.engines for note in engine.notes)
    in_flight = sum(note.loads for note in notes if note.text == Note.IN_FLIGHT)
    counts = _total(answer, "would")
    counts.unknown += max(0, loads - counts.loads)
    return Trial(fields, counts, in_flight)


def _total(answer: admin.WhatIfResponse, field: str) -> Counts:
    """Return the sum of a field of all engines: ``was`` or ``would``."""
    total = Counts()
    for engine in answer.engines:
        counts: admin.WhatIfCounts = getattr(engine, field)
        for each in counts.DESCRIPTOR.fields:
            if each.name == "waited":
                total.waited_ns += counts.waited.ToNanoseconds()
            else:
                setattr(total, each.name, getattr(total, each.name) + getattr(counts, each.name))
    return total


def _is_of_a_load(event: Event) -> bool:
    match event.WhichOneof("body"):
        case "load_outcome":
            return True
        case "deferral_end":
            body = event.deferral_end
            return body.reason in LOAD_CHANNELS and body.ending == DEFERRAL_ENDING_READY
        case "request_closed":
            return bool(event.request_closed.external_cached_tokens)
    return False


def _seen(loads: list[admin.LoggedEvent]) -> Seen:
    """Return what decides about the candidates; the wait of a load that failed has ended like any other."""
    failed = {
        (_request(each), each.event.load_outcome.channel)
        for each in loads
        if each.event.HasField("load_outcome")
    }
    channels: set[int] = {channel for _, channel in failed}
    starts, transfers = [], []
    for each in loads:
        if not each.event.HasField("deferral_end"):
            # Of those that loaded without a wait.
            channels.add(CHANNEL_KV if each.event.HasField("request_closed") else 0)
            continue
        body = each.event.deferral_end
        channel = LOAD_CHANNELS[body.reason]
        channels.add(channel)
        began, transfer, ended = (
            body.start_time_unix_nano,
            body.transfer_start_time_unix_nano,
            each.event.time_unix_nano,
        )
        if (_request(each), channel) not in failed and 0 < began <= transfer <= ended:
            starts.append(transfer - began)
            transfers.append(ended - transfer)
    return Seen(CHANNEL_KV in channels, CHANNEL_EC in channels, tuple(starts), tuple(transfers))
