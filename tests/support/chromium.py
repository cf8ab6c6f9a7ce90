"""A real Chromium, Debian's with its driver, for tests of pages; and axe-core, which checks what people perceive."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from selenium.webdriver import Chrome, ChromeOptions, ChromeService

from tests.support.jars import ROOT, locked

CACHE = ROOT / ".cache" / "axe"
PROGRAMS = ("chromium", "chromedriver")
INSTALL = ["apt-get", "install", "-qq", "-y", "--no-install-recommends", "chromium", "chromium-driver"]
AXE = "axe-core@4.10.3"


def installed() -> None:
    """Install Chromium where it is missing and that is allowed.

    Raises:
        RuntimeError: It is missing; the message has the command that installs it.
    """
    with locked(CACHE / "chromium.lock"):
        if all(map(shutil.which, PROGRAMS)):
            return
        said = "only root may do that"
        if os.geteuid() == 0:
            for command in (["apt-get", "-qq", "update"], INSTALL):
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                said = done.stderr
        if not all(map(shutil.which, PROGRAMS)):
            raise RuntimeError(f"the tests of the page need Chromium; install it with: {' '.join(INSTALL)}\n{said}")


def axe() -> str:
    """The script of axe-core, fetched once by npm.

    Raises:
        RuntimeError: npm is missing, or could not fetch it.
    """
    script = CACHE / AXE / "node_modules" / "axe-core" / "axe.min.js"
    with locked(CACHE / "lock"):
        if not script.is_file():
            command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(CACHE / AXE), AXE]
            try:
                subprocess.run(command, check=True, capture_output=True, text=True)
            except (OSError, subprocess.CalledProcessError) as error:
                raise RuntimeError(f"the tests of the page need npm, to fetch {AXE}: {error}") from error
    return script.read_text()


class Browser:
    """A browser without a window."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def open(self, url: str, *, width: int = 1_280, height: int = 900, dark: bool = False) -> None:
        """Show a page, in a window of this size and with this preference."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.get(url)

    def run(self, script: str, *arguments: object) -> Any:
        """The value of a script in the page."""
        return self.driver.execute_script(script, *arguments)

    def text(self, selector: str) -> str:
        """The visible text of the first such element; empty if there is none."""
        return str(self.run(f"return (document.querySelector({selector!r}) || {{}}).innerText || ''"))

    def violations(self) -> list[str]:
        """What axe-core finds that is serious or critical: the rule, and where."""
        self.run(axe())
        found = self.driver.execute_async_script("axe.run().then(arguments[arguments.length - 1])")["violations"]
        serious = [each for each in found if each["impact"] in ("serious", "critical")]
        return [f"{each['id']}: {[node['html'][:100] for node in each['nodes'][:3]]}" for each in serious]


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser, closed at the end."""
    installed()
    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    driver = Chrome(options=options, service=ChromeService(shutil.which("chromedriver")))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
