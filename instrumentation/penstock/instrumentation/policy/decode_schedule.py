"""Decodes the schedule of a Push: its policies (:mod:`penstock.rules.decode`), and how long each holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.instrumentation.policy.active_policy import ScheduleEntry
from penstock.rules.decode import RefusedError, decode_policy, in_seconds
from penstock.rules.field_paths import has_unknown, unknown_in_policy

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.proto.v1.policy_pb2 import Push, ScheduledPolicy

ENTRIES_MAX: Final = 64


def decode_schedule(push: Push, fields: Collection[str]) -> list[ScheduleEntry]:
    """Return the schedule of *push*, in order.

    Args:
        push: as it was received.
        fields: what this engine acts upon, as dotted names of ``PolicyBody``.

    Raises:
        RefusedError: a value is out of bounds, or a field or value is not supported by this engine.

    """
    # The search for unknown fields costs more than all the rest.
    for path in unknown_in_policy(push) if has_unknown(push) else ():
        raise RefusedError(
            path, f"field {path} is not known to this engine; upgrade the engine or remove the field"
        )
    if len(push.schedule) > ENTRIES_MAX:
        raise RefusedError(
            "", f"the schedule has {len(push.schedule)} entries; keep it at {ENTRIES_MAX} or fewer"
        )
    last = len(push.schedule) - 1
    return [_entry(entry, fields, is_last=index == last) for index, entry in enumerate(push.schedule)]


def _entry(entry: ScheduledPolicy, fields: Collection[str], *, is_last: bool) -> ScheduleEntry:
    timed = entry.HasField("valid_for")
    if timed == is_last:
        raise RefusedError(
            "expiresAt", "the schedule must end with one entry that holds for good, and only that"
        )
    valid_for = in_seconds(entry.valid_for) if timed else None
    if valid_for is not None and valid_for <= 0:
        raise RefusedError(
            "expiresAt", f"an entry of the schedule holds for {valid_for:g} s; it must be more than 0"
        )
    return ScheduleEntry(decode_policy(entry, fields), valid_for)
