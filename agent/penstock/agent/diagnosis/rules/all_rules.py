"""The list of the rules. Pure.

A new rule is a function in a file of its own, and a line here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.agent.diagnosis.rules.engines import agent_causes, engine_causes
from penstock.agent.diagnosis.rules.experts import expert_causes
from penstock.agent.diagnosis.rules.held_blocks import held_causes, lease_causes
from penstock.agent.diagnosis.rules.orders import cut_off_causes, order_causes
from penstock.agent.diagnosis.rules.pairs import incompatible_causes, pair_causes
from penstock.agent.diagnosis.rules.peers import peer_causes
from penstock.agent.diagnosis.rules.policies import policy_causes
from penstock.agent.diagnosis.rules.prefill import first_token_causes, recompute_causes
from penstock.agent.diagnosis.rules.router import router_causes
from penstock.agent.diagnosis.rules.stalls import stall_causes
from penstock.agent.diagnosis.rules.suspects import identity_causes, suspect_causes
from penstock.agent.diagnosis.rules.transfers import transfer_causes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.agent.diagnosis.facts import Attribution, Facts, FoundCause

RULES: Final[tuple[Callable[[Facts, Attribution], Iterator[FoundCause]], ...]] = (
    agent_causes,
    policy_causes,
    order_causes,
    incompatible_causes,
    peer_causes,
    expert_causes,
    lease_causes,
    held_causes,
    engine_causes,
    cut_off_causes,
    transfer_causes,
    first_token_causes,
    router_causes,
    recompute_causes,
    stall_causes,
    suspect_causes,
    identity_causes,
    pair_causes,
)
