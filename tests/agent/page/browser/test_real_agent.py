"""The page of a real agent: it says what agentctl says, and loses nothing when the agent is killed."""

from __future__ import annotations

import re
import signal
import time
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from penstock.agent.ctl.main import cli

from demo.common.processes import free_port
from tests.support.agent.agent import AgentProcess, running_agent
from tests.support.agent.batches import transfer_failure
from tests.support.agent.ingest_client import FakeEngine
from tests.support.page.addresses import page_of
from tests.support.page.sample_fleet import PEERS, apply, manifest, sample_fleet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.browser.chromium import Tab

BEFORE, AFTER = "cmpl-before", "cmpl-after"


@pytest.fixture(scope="module")
def agent() -> Iterator[AgentProcess]:
    """Run an agent with a page that writes, on a port that it has again after a kill, and a fleet in trouble."""
    with (
        running_agent([f"--page=127.0.0.1:{free_port()}", "--page-write=yes"]) as running,
        sample_fleet(running),
    ):
        yield running


def agentctl(agent: AgentProcess, *command: str) -> list[str]:
    """Return the lines that a command prints; agentctl ends with 1 where something is wrong."""
    result = CliRunner().invoke(cli, ["--address", agent.admin, *command])
    assert result.exit_code in {0, 1}, result.output
    return [line for line in result.output.splitlines() if line]


def column(lines: list[str], name: str) -> list[str]:
    """Return one column of a table whose cells have no spaces."""
    place = lines[0].split().index(name)
    return [line.split()[place] for line in lines[1:]]


def timeless(sentence: str) -> str:
    """Return a verdict without its durations: the page's was computed a moment before agentctl's."""
    return re.sub(r"\d+(\.\d+)?(ms|s|m)\b", "some time", sentence)


def test_the_page_says_what_agentctl_says(tab: Tab, agent: AgentProcess) -> None:
    """Verdict, engines, peers, waits and policy are those that the commands print."""
    tab.open(page_of(agent))
    tab.until_text("#waits tbody", "cmpl-wait")
    tab.until(lambda: timeless(agentctl(agent, "diagnose")[0]) == timeless(tab.text("#verdict .sentence")))
    tab.until(lambda: _has_the_peers(tab, agent))
    tab.until(
        lambda: (
            set(tab.texts("#waits tbody th .name:first-child"))
            == set(column(agentctl(agent, "get", "requests", "--deferred"), "REQUEST"))
        )
    )
    tab.until_text("#policy", "decode-default")
    fields = tab.texts("#policy tbody th")
    described = "\n".join(agentctl(agent, "describe", "engine", "decode/0"))
    assert fields
    assert all(field in described for field in fields)
    failed = agentctl(agent, "get", "events", "--kind", "transfer_failure", "--since", "15m")
    requests = {word for line in failed[1:] for word in line.split() if word.startswith("cmpl-")}
    assert requests
    tab.until(lambda: set(tab.texts("#failures tbody td:nth-child(2) .name:first-child")) == requests)


def _has_the_peers(tab: Tab, agent: AgentProcess) -> bool:
    """Tell whether the page has the engines, the peers, and the condition of the worst that ``get peers`` has now."""
    peers = agentctl(agent, "get", "peers")
    said = {line.split()[0]: line.split()[3] for line in reversed(peers[1:]) if line.startswith("decode/0 ")}
    cells = tab.texts("#peers tbody tr:first-child .cell")
    return (
        set(tab.texts("#peers thead .name")) == set(column(peers, "ENGINE"))
        and set(tab.texts("#peers tbody th .name")) == set(column(peers, "ADDRESS"))
        and bool(cells)
        and cells[0].startswith(said["decode/0"])
    )


def test_every_detail_opens(tab: Tab, agent: AgentProcess) -> None:
    """Request, peer, engine, condition, policy, policies, engines and events of a real agent are shown, without an error."""
    details = {
        "request&open-id=cmpl-wait-0-0": "has not finished",
        f"peer&open-engine=decode/0&open-peer={PEERS[0]}": f"Peer {PEERS[0]}",
        "engine&open-engine=decode/0": "maxTransferWait",
        f"condition&open-name=peer_refuses&open-peer={PEERS[0]}": "refuses connections",
        "policy&open-name=decode-default": "kind: TransferPolicy",
        "policies": "decode-default",
        "engines": "prefill/0",
        "events": "transfer_failure",
    }
    for fragment, text in details.items():
        tab.open(f"{page_of(agent)}/#open={fragment}")
        tab.until_text("dialog", text)
        assert tab.texts("dialog .error") == []


def test_a_killed_agent_costs_no_entry(tab: Tab, agent: AgentProcess) -> None:
    """The page says since when it is alone; once the agent is back, what failed meanwhile is there, once."""
    tab.open(page_of(agent))
    with FakeEngine(agent.listen, server="extra", engine="0") as engine:
        engine.publish(transfer_failure(BEFORE, peer=PEERS[1], time_ns=time.time_ns()))
        tab.until_text("#failures", BEFORE)
    agent.stop(signal.SIGKILL)
    tab.until_text("#fresh", "disconnected since")
    agent.start()
    with FakeEngine(agent.listen, server="extra", engine="0") as engine:
        engine.publish(transfer_failure(AFTER, peer=PEERS[1], time_ns=time.time_ns()))
        tab.until_text("#failures", AFTER)
    names = [name for name in tab.texts("#failures .name") if name in {BEFORE, AFTER}]
    assert names == [AFTER, BEFORE]
    tab.until(lambda: "disconnected" not in tab.text("#fresh"))


def test_a_write_is_shown_first_and_then_done(tab: Tab, agent: AgentProcess) -> None:
    """The dry run leaves no trace; what is confirmed is in the audit log, with its reason, and is undone the same way."""
    tab.open(_link(agent, "open=engine&open-engine=decode/1"))
    tab.until_text("dialog", "maxTransferWait")
    for number, (order, reason) in enumerate((("Pause", "half-past"), ("Resume", "all-clear")), 1):
        form = f"dialog .write:nth-of-type({number})"
        tab.js(
            "const form = document.querySelector(arguments[0]); form.open = true; const reason = form.querySelector('[name=reason]');"
            "reason.value = arguments[1]; reason.dispatchEvent(new Event('input', {bubbles: true}));",
            form,
            reason,
        )
        tab.js("document.querySelector(`${arguments[0]} form`).requestSubmit()", form)
        tab.until_text(f"{form} .confirm", order)
        assert reason not in "\n".join(agentctl(agent, "get", "audit"))
        tab.js("document.querySelector(`${arguments[0]} .confirm`).click()", form)
        tab.until_text(f"{form} [role=status]", "ordered")
        assert reason in "\n".join(agentctl(agent, "get", "audit", "-o", "wide"))


def test_a_policy_is_edited_unless_another_has_changed_it(tab: Tab, agent: AgentProcess) -> None:
    """The dry run shows the field of each engine; a change by another in between is kept, and after it the edit is done."""
    apply(agent.admin, manifest("edited", priority=200))
    place = _link(agent, "open=policy&open-name=edited")
    tab.open(place)
    _try_edit(tab, "fail")
    rows = tab.texts(".dry-run tbody tr")
    assert any(
        all(word in row for word in ("decode/0", "kvLoadFailure.action", "fail (edited)")) for row in rows
    )
    assert "action: recompute" in _stored(agent)
    apply(agent.admin, manifest("edited", priority=300), author="bob@shop")
    tab.js("document.querySelector('dialog .confirm').click()")
    tab.until_text("dialog .write .error", "edited")
    assert "priority: 300" in _stored(agent)
    assert "action: recompute" in _stored(agent)
    tab.open(place)
    _try_edit(tab, "fail")
    tab.js("document.querySelector('dialog .confirm').click()")
    tab.until(lambda: "action: fail" in _stored(agent))
    assert "quarter-to-ten" in "\n".join(agentctl(agent, "get", "audit", "edited"))


def test_a_link_brings_a_token_for_this_tab(tab: Tab, agent: AgentProcess) -> None:
    """It leaves the address at once, stays over a reload, and a restart of the agent ends it, which the page says."""
    tab.open(_link(agent, "engine=decode/1"))
    tab.until_text("#peers", "peer")
    assert tab.js("return location.hash") == "#engine=decode%2F1"
    tab.js("location.hash = 'open=engine&open-engine=decode/1'")
    tab.until_text("dialog", "Pause decode/1")
    tab.js("location.reload()")
    tab.until_text("dialog", "Pause decode/1")
    agent.stop(signal.SIGKILL)
    agent.start()
    tab.until_text(".banners", "The token of this tab has ended")
    tab.js(f"location.hash = '{_link(agent, 'engine=decode/0').partition('#')[2]}'")
    tab.until(lambda: "has ended" not in (tab.text(".banners") if tab.texts(".banners") else ""))
    assert tab.js("return location.hash") == "#engine=decode%2F0"


def test_a_page_that_takes_a_token_says_how_to_get_one(tab: Tab) -> None:
    """Nothing is shown without one; with the link the same tab goes on."""
    with running_agent([f"--page=127.0.0.1:{free_port()}", "--page-read=token"]) as agent:
        tab.open(page_of(agent))
        tab.until_text(".banners", "'agentctl page' prints the page's address")
        tab.driver.get(_link(agent, "open=engines"))
        tab.until_text("dialog", "Engines")
        tab.until_text("#fresh", "old")
        assert tab.texts(".banners") == []
        # The browser tells of the refusal.
        assert all("401" in each for each in tab.complaints())


def _link(agent: AgentProcess, rest: str) -> str:
    """Return the link that 'agentctl page' prints, with *rest* in its fragment."""
    return f"{agentctl(agent, 'page')[0]}&{rest}"


def _stored(agent: AgentProcess) -> str:
    """Return the policy as the agent has it."""
    return "\n".join(agentctl(agent, "get", "policy", "edited", "-o", "yaml"))


def _try_edit(tab: Tab, action: str) -> None:
    """Choose another action in the form of the open panel, read it in the YAML, give a reason, and see what it would do."""
    tab.until_text("dialog", "Edit edited")
    tab.js(
        "const type = (name, text) => { const [one] = document.getElementsByName(name); one.value = text;"
        "one.dispatchEvent(new Event('input', {bubbles: true})); };"
        "type('kvLoadFailure.action', arguments[0]); type('reason', 'quarter-to-ten');",
        action,
    )
    tab.until_text(".tabs", "changed, not applied")
    tab.js("document.querySelector('.tabs button:last-of-type').click()")
    tab.until(lambda: f"action: {action}" in tab.js("return document.querySelector('textarea')?.value ?? ''"))
    tab.js("document.querySelector('dialog .write form').requestSubmit()")
    tab.until_text("dialog .confirm", "quarter-to-ten")
