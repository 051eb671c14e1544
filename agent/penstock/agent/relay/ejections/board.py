"""What the leader of ejections has made of each server at its last look, for who asks this relay. The loop's."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from penstock.agent.relay.ejections.rails import EjectionVerdict
    from penstock.proto.v1 import admin_pb2 as admin

NOBODY = "no policy of this relay's source sets ejection"


class EjectionBoard:
    """The verdicts of the last look.

    Attributes:
        verdicts: by server.
        undecided: why there are none; empty where there may be.
        orders: since the start, by ``enforced``, ``observed`` and ``refused``.

    """

    def __init__(self) -> None:
        """Begin without any."""
        self.verdicts: Sequence[EjectionVerdict] = ()
        self.undecided = (
            "this relay follows no policies; start it with the --policy-source that the agents follow"
        )
        self.orders: Counter[str] = Counter()

    def clear(self, why: str) -> None:
        """Forget the verdicts; *why* there are none."""
        self.verdicts, self.undecided = (), why

    def add_to(self, answer: admin.ListEjectionsResponse, wanted: Collection[tuple[str, str]]) -> None:
        """Add the verdicts to *answer*, which has the orders; *wanted*: only of these engines."""
        answer.undecided = self.undecided
        rows = {each.key.server: each for each in answer.ejections}
        for verdict in self.verdicts:
            keys = [key for key in verdict.server.keys if tuple(key) in wanted]
            if not keys:
                continue
            row = rows.get(verdict.server.name)
            if row is None:
                if verdict.word == "ejected":
                    # It has ended since.
                    continue
                row = answer.ejections.add()
                row.key.server, row.key.engine = keys[0]
            row.address = ", ".join(verdict.server.addresses)
            row.verdict = "ejected" if verdict.word == "eject" else verdict.word
            row.why = verdict.why
            row.policy = verdict.rules.policy
            if verdict.since is not None:
                row.since.FromNanoseconds(int(verdict.since * 1e9))
        answer.ejections.sort(key=lambda each: (each.key.server, each.key.engine))
