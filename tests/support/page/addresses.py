"""Where the page of a running agent or relay is."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.support.agent.agent import AgentProcess
    from tests.support.agent.relay import RelayProcess


def page_of(agent: AgentProcess) -> str:
    """Return the address of an agent's page, without the slash at its end."""
    found = json.loads((agent.state_dir / "addresses.json").read_text())
    return str(found["page"]).rstrip("/")


def relay_page_of(relay: RelayProcess) -> str:
    """Return the address of a relay's page; its log has it."""
    records = [json.loads(line) for line in relay.log().splitlines() if line.startswith("{")]
    return next(str(each["page"]) for each in reversed(records) if "page" in each).rstrip("/")
