"""Which transfers are verified, and what a mismatch leads to: ``integrity`` of the policy in force."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

from penstock.rules.policy import IntegrityAction

if TYPE_CHECKING:
    from penstock.rules.policy import Policy

_BYTES: Final = 8
_RANGE: Final = 1 << (8 * _BYTES)


@dataclass(frozen=True, slots=True)
class IntegrityRule:
    """Verify this share of the requests; *enforce*: a mismatch is a failed load, else it is only reported."""

    sample_ratio: float
    enforce: bool

    def samples(self, request_id: str) -> bool:
        """Return whether the request with that id, the prefill side's, is verified: the same on every engine."""
        if self.sample_ratio >= 1.0:
            return True
        digest = blake2b(request_id.encode(errors="replace"), digest_size=_BYTES).digest()
        return int.from_bytes(digest) < self.sample_ratio * _RANGE


def integrity_rule(policy: Policy) -> IntegrityRule | None:
    """Return the rule of *policy*; None if nothing is verified. A policy in mode observe never enforces."""
    section, enforced = policy.integrity, True
    if section is None or not section.sample_ratio:
        section = policy.observed.integrity if policy.observed is not None else None
        enforced = False
    if section is None or not section.sample_ratio:
        return None
    return IntegrityRule(section.sample_ratio, enforced and section.action is IntegrityAction.ENFORCE)
