"""The page over real engines, in a real Chromium: it says what agentctl says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.browser.chromium import Tab, chromium, missing
from tests.support.engine.pairs import CPU_DEFAULTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.kv.bench import Bench

pytestmark = [
    pytest.mark.engine,
    pytest.mark.parametrize("stack", [CPU_DEFAULTS], indirect=True, ids=["cpu"]),
]


@pytest.fixture
def tab() -> Iterator[Tab]:
    """Run Chromium; what the page complains of fails the test."""
    if reason := missing():
        pytest.skip(reason)
    with chromium() as opened:
        yield opened
        assert not opened.complaints()


def test_a_load_that_fails_is_on_the_page(kv: Bench, tab: Tab) -> None:
    """While it is open: the failure, the peer and the policy come by themselves; the request has its explanation."""
    page = kv.agent.page.rstrip("/")
    tab.open(page)
    tab.until_text("#fresh", "data")
    kv.enforce(kvLoadFailure={"action": "recompute"})
    request = kv.misled()
    assert kv.decode(request).completion == request.text
    kv.closed(request)

    tab.until_text("#failures", request.name)
    tab.until_text("#peers", request.peer)
    tab.until_text("#policy", "kvLoadFailure.action")
    assert "recompute" in tab.text("#policy")
    engines = {line.split()[0] for line in kv.ctl("get", "peers").splitlines()[1:] if line}
    assert set(tab.texts("#peers thead .name")) <= engines

    tab.open(f"{page}/#open=request&open-id={request.name}")
    (sentence, *_) = kv.ctl("explain", request.name).splitlines()
    # The page cuts what is long.
    tab.until_text("dialog", sentence[:200])
