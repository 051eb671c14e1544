"""One browser for all tests of the page, and a server that says what a test has it say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.browser.chromium import Tab, chromium, missing
from tests.support.browser.scripted_server import ScriptedServer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def browser() -> Iterator[Tab]:
    """Run the one Chromium."""
    if reason := missing():
        pytest.skip(reason)
    with chromium() as tab:
        yield tab


@pytest.fixture
def tab(browser: Tab) -> Iterator[Tab]:
    """Return its tab, at the size of the first screen; what the page complains of fails the test."""
    browser.size(1280, 800)
    browser.complaints()
    yield browser
    said = browser.complaints()
    browser.open("about:blank")
    assert not said


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """Run a server that says nothing by itself."""
    server = ScriptedServer()
    server.start()
    yield server
    server.close()
