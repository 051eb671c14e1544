"""Draws the page for the guides: ``python -m tests.agent.page.browser.screenshots`` writes docs/images/page-*.png.

Each picture is what Chromium shows of the page of a recorded incident, caused on real engines. The time is that of the
recording, so the same browser draws the same picture on any day.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image
from selenium.webdriver.common.by import By

from tests.support.browser.chromium import chromium
from tests.support.incidents.table import FIVE, INCIDENTS
from tests.support.page.bundle_page import bundle_page

if TYPE_CHECKING:
    from tests.support.browser.chromium import Tab

IMAGES = Path(__file__).parents[4] / "docs" / "images"
# Of the first picture of the README and of the guide.
_FIRST = "load-never-starts"
_CALM = "nothing-wrong"
_MAP = "prefill-network-flaps"
_COLOURS = 256


def main() -> None:
    """Write the pictures: one of each of the five incidents, that of the first in light and dark, of calm, and of a map."""
    with chromium() as tab:
        tab.driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "UTC"})
        for name in FIVE:
            _draw(tab, name, f"page-{name}")
        for look in ("light", "dark"):
            _draw(tab, _FIRST, f"page-{look}", dark=look == "dark")
        _draw(tab, _CALM, "page-calm", trouble=False)
        tab.size(1280, 800)
        with bundle_page(INCIDENTS[_MAP]) as page:
            tab.open(page)
            tab.until(lambda: tab.texts("#map button.node"))
            (IMAGES / "page-map.png").write_bytes(
                _small(tab.driver.find_element(By.ID, "map").screenshot_as_png)
            )


def _draw(tab: Tab, name: str, picture: str, *, dark: bool = False, trouble: bool = True) -> None:
    """Write the picture of an incident, or of none, once all parts of its screen are there."""
    tab.size(1280, 800, dark=dark)
    with bundle_page(INCIDENTS[name]) as page:
        tab.open(page)
        tab.until(lambda: tab.texts("#peers tbody tr") and tab.texts("#map button.node"))
        tab.until(lambda: "failure" in tab.text(".time") and tab.texts("#failures tr, #failures .empty"))
        tab.until(lambda: bool(tab.texts(".causes li")) is trouble)
        (IMAGES / f"{picture}.png").write_bytes(_small(tab.picture()))


def _small(png: bytes) -> bytes:
    """Return a picture in as many colours as a palette has: the page has fewer, except at the edges of letters."""
    made = io.BytesIO()
    image = Image.open(io.BytesIO(png)).convert("RGB")
    image.quantize(_COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
        made, "PNG", optimize=True
    )
    return made.getvalue()


if __name__ == "__main__":
    main()
