"""What ``agentctl doctor`` says of pairs of engines."""

from __future__ import annotations

from penstock.agent.views.checks import NOTE, OK, check_pairs
from penstock.proto.v1 import admin_pb2 as admin


def _pair(**changed: object) -> admin.Pair:
    """Build a good pair with *changed* fields."""
    good = {"compatible": admin.PAIR_COMPATIBILITY_YES, "weights": admin.PAIR_WEIGHTS_SAME}
    return admin.Pair(**{**good, **changed})  # type: ignore[arg-type]


def test_findings_of_pairs() -> None:
    """How many are compatible, and a mix of roll-outs; what is wrong with pairs is the diagnosis' to say."""
    assert list(check_pairs([])) == []
    assert [(each.level, each.what) for each in check_pairs([_pair()])] == [
        (OK, "1 of 1 pair known to be compatible")
    ]
    bad = _pair(compatible=admin.PAIR_COMPATIBILITY_NO, reason="dtype a≠b")
    other = _pair(weights=admin.PAIR_WEIGHTS_DIFFER)
    mixed = _pair(differences=[{"fact": "revision"}], revision="6", peer_revision="5")
    found = list(check_pairs([bad, other, mixed]))
    assert [each.level for each in found] == [OK, NOTE]
    assert found[1].what == "1 pair of 3 mix roll-outs: 5, 6"
