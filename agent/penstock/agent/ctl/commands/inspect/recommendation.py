"""A recommended policy: its manifest, its evidence in lines and as JSON values, and what is not known about it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from penstock.agent.model import BREAK_GLASS_PRIORITY
from penstock.agent.parsing import Requirement, format_duration, format_labels, parse_labels
from penstock.agent.policy.manifest import API_VERSION, KIND, unflatten
from penstock.agent.replay import MIN_LOADS
from penstock.agent.views.json_values import as_json_values, moment
from penstock.agent.views.tables import table
from penstock.agent.views.text import count, one_line, printable
from penstock.proto.v1 import admin_pb2 as admin

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from penstock.agent.replay import Counts, Found, Value

NAME = "recommended"
_REASON = "penstock.dev/reason"
_MAX_UINT64 = (1 << 64) - 1
_NANO = 1_000_000_000
_HEADERS = ("FAILED", "WAITED", "TOKENS", "LOADED", "RECOMPUTED", "CUT", "NOT-TRIED", "NOT-KNOWN", "POLICY")
_NOTE_LENGTH = 200


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What a search has found, and from what.

    Attributes:
        since: of the window, before now.
        first_ns: when the first of the replayed loads is recorded, since the epoch; None if not known.
        last_ns: likewise the last.
        requests: that the loads are of; None if not known.
        recorded: what was.
        today: the replay of today's policies.
        found: None if too few loads are recorded.
        manifest: None if nothing is recommended.
        unknown: sentences.

    """

    since: timedelta
    first_ns: int | None
    last_ns: int | None
    requests: int | None
    recorded: Counts
    today: Counts
    found: Found | None
    manifest: Mapping[str, Any] | None
    unknown: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """What is recommended, or why nothing is."""
        if self.found is None:
            return (
                f"nothing is recommended: {count(self.recorded.loads, 'remote load')} recorded in the last "
                f"{format_duration(self.since)}, at least {MIN_LOADS} are needed"
            )
        if self.found.best is None:
            tried = f"{count(len(self.found.trials), 'candidate')} replayed"
            return f"nothing is recommended: none is better than today's policies ({tried})"
        return f"recommended: {_fields(self.found.best.fields)}"


def manifest(
    fields: Mapping[str, Value], name: str, selector: str, priorities: Iterable[int], reason: str = ""
) -> dict[str, Any]:
    """Return a candidate as a manifest in mode observe.

    Args:
        fields: by path below ``spec``.
        name: of the policy.
        selector: which engines, as ``-l`` takes it; empty for every one, which ``apply`` wants to be said.
        priorities: of today's policies, above which it has to be.
        reason: for the audit log.

    """
    priority = min(max([100, *(each + 1 for each in priorities)]), BREAK_GLASS_PRIORITY - 1)
    annotations = {"annotations": {_REASON: reason}} if reason else {}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, **annotations},
        "spec": {
            "selector": _selector(selector),
            "priority": priority,
            "mode": "observe",
            **unflatten({path: _leaf(value) for path, value in fields.items()}),
        },
    }


def _selector(text: str) -> dict[str, Any]:
    expressions = [
        {
            "key": each.key,
            "operator": each.operator,
            **({"values": list(each.values)} if each.values else {}),
        }
        for each in parse_labels(text)
    ]
    return {"matchExpressions": expressions} if expressions else {"models": ["*"]}


def selector_of_engines(engines: Iterable[admin.Engine], replayed: admin.WhatIfResponse) -> str:
    """Return the selector for the roles of the replayed engines; empty if not each is listed with one."""
    roles = {(each.key.server, each.key.engine): each.labels.get("role", "") for each in engines}
    found = {roles.get((each.key.server, each.key.engine), "") for each in replayed.engines}
    return (
        format_labels([Requirement("role", "In", tuple(sorted(found)))]) if found and "" not in found else ""
    )


def _leaf(value: Value) -> str | int:
    return format_duration(value) if isinstance(value, timedelta) else value


def _fields(fields: Mapping[str, Value]) -> str:
    sections = unflatten({path: _leaf(value) for path, value in fields.items()})
    return ", ".join(
        f"{section} {{{', '.join(f'{name}: {value}' for name, value in body.items())}}}"
        for section, body in sections.items()
    )


def evidence_lines(shown: Recommendation) -> Iterator[str]:
    """Yield the printable lines of what was replayed, each candidate beside today, and what is not known."""
    yield f"{count(shown.today.loads, 'remote load')} of {_requests(shown)}, {_window(shown)}"
    yield ""
    rows = [("recorded", shown.recorded), ("today's policies", shown.today)]
    trials, best = ((), None) if shown.found is None else (shown.found.trials, shown.found.best)
    rows += [(f"{'* ' if trial is best else ''}{_fields(trial.fields)}", trial.counts) for trial in trials]
    yield from table(_HEADERS, [(*_cells(counts), name) for name, counts in rows]).split("\n")
    if trials:
        yield ""
        marked = "; *: recommended" if best is not None else ""
        yield f"{count(len(trials), 'candidate')} replayed on top of today's policies{marked}"
    yield ""
    yield "Not known:"
    yield from (f"- {printable(each)}" for each in shown.unknown)


def _requests(shown: Recommendation) -> str:
    if shown.requests is None:
        return "requests whose number is not known"
    return count(shown.requests, "request")


def _window(shown: Recommendation) -> str:
    asked = f"the last {format_duration(shown.since)}"
    if shown.first_ns is None or shown.last_ns is None:
        return f"of {asked}; when the first was recorded is not known"
    first, last = (datetime.fromtimestamp(each / _NANO, UTC) for each in (shown.first_ns, shown.last_ns))
    return f"recorded from {first:%Y-%m-%d %H:%M:%S} to {last:%Y-%m-%d %H:%M:%S} UTC (of {asked})"


def _cells(counts: Counts) -> tuple[str, ...]:
    return (
        str(counts.failed),
        f"{counts.waited_ns / _NANO:.1f}s",
        str(counts.tokens_recomputed),
        str(counts.loaded),
        str(counts.recomputed),
        str(counts.waits_cut),
        str(counts.not_tried),
        str(counts.unknown),
    )


def document(shown: Recommendation) -> dict[str, Any]:
    """Return it as JSON values."""
    trials = () if shown.found is None else shown.found.trials
    times = {
        name: moment(value)
        for name, value in (("from", shown.first_ns), ("to", shown.last_ns))
        if value is not None
    }
    return {
        "sentence": shown.sentence,
        **({"manifest": dict(shown.manifest)} if shown.manifest is not None else {}),
        "loads": shown.today.loads,
        **({"requests": shown.requests} if shown.requests is not None else {}),
        **times,
        "complete": shown.found is not None and shown.found.complete,
        "recorded": as_json_values(counts_message(shown.recorded)),
        "today": as_json_values(counts_message(shown.today)),
        "candidates": [
            {
                "fields": {path: str(_leaf(value)) for path, value in sorted(trial.fields.items())},
                "replayed": as_json_values(counts_message(trial.counts)),
            }
            for trial in trials
        ],
        "notKnown": list(shown.unknown),
    }


def counts_message(counts: Counts) -> admin.WhatIfCounts:
    """Return counts as the wire has them."""
    message = admin.WhatIfCounts()
    for field in message.DESCRIPTOR.fields:
        if field.name != "waited":
            setattr(message, field.name, min(getattr(counts, field.name), _MAX_UINT64))
    message.waited.FromNanoseconds(min(counts.waited_ns, _MAX_UINT64))
    return message


def unknown_of_replay(
    answer: admin.WhatIfResponse, best: admin.WhatIfResponse | None, today: Counts
) -> Iterator[str]:
    """Yield what two replays cannot know: *answer* of today's policies, *best* of the recommended ones."""
    if answer.truncated:
        yield f"what came before the newest {answer.entries} entries: they alone were replayed"
    if answer.unreadable_batches:
        yield f"what {count(answer.unreadable_batches, 'damaged batch')} of the log held"
    lost = today.failed + today.recomputed
    if 0 < lost < MIN_LOADS:
        yield f"how much of this is chance: only {count(lost, 'load')} failed or were recomputed"
    notes: dict[str, int] = {}
    for engine in (answer if best is None else best).engines:
        for note in engine.notes:
            notes[note.text] = notes.get(note.text, 0) + note.loads
    for said, loads in sorted(notes.items(), key=lambda item: (-item[1], item[0])):
        yield f"{count(loads, 'load')} {one_line(said, _NOTE_LENGTH)}"
    yield "how recomputation slows other requests, and what comes another day: neither is replayed"


def unknown_of_engines(engines: Iterable[admin.Engine], replayed: admin.WhatIfResponse) -> Iterator[str]:
    """Yield what engines have dropped before it came to the log."""
    by_key = {(each.key.server, each.key.engine): each for each in engines}
    asked = {(each.key.server, each.key.engine) for each in replayed.engines}
    lost = sum(source.lost_entries for key in asked & by_key.keys() for source in by_key[key].sources)
    if lost:
        yield f"what {lost} dropped entries of these engines held"
    if gone := len(asked - by_key.keys()):
        yield f"whether entries were dropped, of {count(gone, 'engine')} that the agent does not list any more"
