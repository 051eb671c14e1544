"""One headless Chromium, and what tests do in it."""

from __future__ import annotations

import base64
import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selenium.common.exceptions import TimeoutException
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.support.ui import WebDriverWait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

AXE = Path(__file__).parents[3] / ".cache" / "page-tools" / "node_modules" / "axe-core" / "axe.min.js"
# Debian's name, and that of machines that have Google's.
_BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
_DRIVER = shutil.which("chromedriver")
# A condition that has not come true by then never will.
_PATIENCE_SECONDS = 120.0
# What Chromium says of a server that was stopped, and of a write that is refused, is what those tests are about.
_EXPECTED = ("net::ERR_", "404 (Not Found)", "409 (Conflict)")


def missing() -> str:
    """Return why there is no browser, or nothing."""
    if not _BROWSER or not _DRIVER:
        return "needs chromium and chromedriver on PATH (scripts/need-chromium.sh)"
    return "" if AXE.is_file() else "needs axe-core (scripts/need-page-tools.sh)"


class Tab:
    """The browser's one tab."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def open(self, address: str) -> None:
        """Load a page anew, also where only the fragment differs from the one before."""
        self.driver.get("about:blank")
        self.driver.get(address)

    def js(self, script: str, *arguments: Any) -> Any:
        """Run a function's body in the page and return what it returns."""
        return self.driver.execute_script(script, *arguments)

    def text(self, selector: str) -> str:
        """Return the text of the first element that a selector finds, empty where it finds none."""
        return str(self.js("return document.querySelector(arguments[0])?.textContent ?? ''", selector))

    def texts(self, selector: str) -> list[str]:
        """Return the texts of all elements that a selector finds."""
        return list(
            self.js(
                "return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)", selector
            )
        )

    def until(self, condition: Callable[[], Any]) -> Any:
        """Wait for a condition and return its value."""
        return WebDriverWait(self.driver, _PATIENCE_SECONDS, poll_frequency=0.05).until(
            lambda _driver: condition()
        )

    def until_text(self, selector: str, part: str) -> None:
        """Wait until an element's text has a part."""
        try:
            self.until(lambda: part in self.text(selector))
        except TimeoutException:
            raise AssertionError(f"{part!r} is not in {selector}: {self.text(selector)!r}") from None

    def size(self, width: int, height: int, *, dark: bool = False, forced: bool = False) -> None:
        """Lay the page out for a window of so many CSS pixels, in a colour scheme; *forced*: with the system's few colours."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "forced-colors", "value": "active" if forced else "none"},
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def picture(self) -> bytes:
        """Return what is seen, as PNG."""
        return base64.b64decode(
            self.driver.execute_cdp_cmd("Page.captureScreenshot", {"optimizeForSpeed": False})["data"]
        )

    def findings(self) -> list[str]:
        """Return what axe-core finds that people cannot use: its rule, and where."""
        self.js(AXE.read_text())
        # Whether a colour on a colour can be read is not told of what is faded by a motion; the page has none.
        found = self.driver.execute_async_script(
            "const done = arguments[0]; axe.run(document).then((found) => done(found.violations), (error) => done([{id: String(error), nodes: []}]))"
        )
        return [
            f"{one['id']}: {node['html']} {node['failureSummary']}" for one in found for node in one["nodes"]
        ] or [one["id"] for one in found if not one["nodes"]]

    def complaints(self) -> list[str]:
        """Return what the page said on the console since this was last asked, without what is expected."""
        said = [str(line["message"]) for line in self.driver.get_log("browser")]
        return [message for message in said if not any(part in message for part in _EXPECTED)]


@contextmanager
def chromium() -> Iterator[Tab]:
    """Run a browser."""
    options = ChromeOptions()
    options.binary_location = _BROWSER or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for argument in (
        "--headless=new",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--disable-background-networking",
    ):
        options.add_argument(argument)
    if os.getuid() == 0:
        options.add_argument("--no-sandbox")
    driver = Chrome(options=options, service=ChromeService(_DRIVER))
    try:
        yield Tab(driver)
    finally:
        driver.quit()
