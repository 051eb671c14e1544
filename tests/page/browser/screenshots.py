"""Draws the page for the guide: ``python -m tests.page.browser.screenshots`` writes docs/images/page-*.png.

A real agent has engines with one peer that refuses connections; the picture is what Chromium shows of its page.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.agent.agent import running_agent
from tests.support.browser.chromium import Tab, chromium
from tests.support.page.addresses import page_of
from tests.support.page.sample_fleet import sample_fleet

IMAGES = Path(__file__).parents[3] / "docs" / "images"


def main() -> None:
    """Write the pictures."""
    with running_agent(["--page=127.0.0.1:0"]) as agent, sample_fleet(agent), chromium() as tab:
        for name, dark in (("light", False), ("dark", True)):
            tab.size(1280, 800, dark=dark)
            tab.open(page_of(agent))
            tab.until_text("#waits tbody", "cmpl-wait")
            tab.until_text("#verdict .sentence", "peer")
            _write(tab, f"page-{name}")


def _write(tab: Tab, name: str) -> None:
    (IMAGES / f"{name}.png").write_bytes(tab.picture())


if __name__ == "__main__":
    main()
