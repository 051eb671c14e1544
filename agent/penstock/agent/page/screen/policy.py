"""The policy that engines are to have, field by field, with its author. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from penstock.agent.page.screen.model import PolicyField, PolicyTable
from penstock.agent.page.wire import about, milliseconds, plain
from penstock.agent.views import text

if TYPE_CHECKING:
    from penstock.agent.page.screen.model import ScreenAnswers
    from penstock.proto.v1 import admin_pb2 as admin

MOST_ROWS = 40
_NAMED = 12


class _Given(NamedTuple):
    """What tells rows apart."""

    field: str
    value: str
    policy: str
    in_force: bool


def policy_table(answers: ScreenAnswers) -> PolicyTable:
    """Return the fields that policies set, the most common first."""
    if answers.engines is None:
        return PolicyTable((), 0, answers.trouble or "the agent has not answered yet")
    engines: defaultdict[_Given, list[str]] = defaultdict(list)
    sources: dict[_Given, tuple[str, int]] = {}
    for item in answers.engines.engines:
        merged = answers.effective.get(item.wanted_hash)
        if merged is None:
            continue
        names = {each.name: each for each in merged.policies}
        for field in merged.fields:
            given = _Given(field.field, field.new_value, field.new_policy, item.in_sync)
            engines[given].append(text.engine(item.key))
            source = names.get(field.new_policy)
            sources[given] = ("", 0) if source is None else (source.author, source.changed_time_unix_nano)
    order = sorted(
        engines, key=lambda given: (given.in_force, -len(engines[given]), given.field, given.value)
    )
    rows = tuple(_row(given, engines[given], *sources[given]) for given in order[:MOST_ROWS])
    return PolicyTable(rows, len(order), "" if rows else _nothing(answers.engines.engines))


def _row(given: _Given, engines: list[str], author: str, changed: int) -> PolicyField:
    return PolicyField(
        field=plain(given.field),
        value=plain(given.value, 120),
        policy=plain(given.policy),
        author=plain(author, 120),
        changed=milliseconds(changed) if changed else None,
        engines=len(engines),
        engine_keys=tuple(map(plain, engines[:_NAMED])),
        in_force=given.in_force,
        command=about("describe", "policy", name=given.policy),
    )


def _nothing(engines: object) -> str:
    if not engines:
        return "no engine has connected; policies wait for it"
    return "no policy selects an engine; vLLM's own configuration is in force"


def hashes(engines: admin.ListEnginesResponse) -> dict[str, admin.Engine]:
    """Return one engine for each hash of a policy that engines are to have."""
    found: dict[str, admin.Engine] = {}
    for item in engines.engines:
        if item.wanted_hash:
            found.setdefault(item.wanted_hash, item)
    return found
