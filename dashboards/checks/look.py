"""Pictures of the dashboards, drawn by a small viewer that Prometheus serves, in a headless Chromium.

The viewer reads the same JSON as Grafana and draws it roughly as Grafana would. It shows that each panel has
something to draw; what Grafana makes of it, it cannot show.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import Browser, sync_playwright

from dashboards.checks.asked import FILES, document
from dashboards.checks.live import MAY_BE_EMPTY
from dashboards.checks.scene import Scene

_VIEWER = Path(__file__).parent.parent / "viewer"
_SCRIPTS = ("ask.js", "draw.js", "show.js")
_FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
_WIDTH, _HEIGHT = 1500, 900


def pages(into: Path) -> None:
    """Write the viewer's pages, for Prometheus to serve."""
    into.mkdir(parents=True, exist_ok=True)
    script = "\n".join(
        (_VIEWER / name).read_text().replace('"use strict";', "") for name in _SCRIPTS
    )
    frame = (_VIEWER / "page.html").read_text().replace("SCRIPT", script)
    for name in FILES:
        # Prometheus takes two braces for its own template language.
        told = json.dumps(document(name)).replace("{{", "{\\u007b").replace("<", "\\u003c")
        (into / name.replace(".json", ".html")).write_text(frame.replace("DASHBOARD", told))


def missing() -> str | None:
    """What this needs and is not there."""
    return None if shutil.which("chromium") else "no chromium here"


def mistakes(scene: Scene, into: Path) -> Sequence[str]:
    """Draw both dashboards into `into`; gives what was empty or went wrong."""
    into.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=list(_FLAGS), chromium_sandbox=False
        )
        found = [line for name in FILES for line in _drawn(browser, scene, name, into)]
        browser.close()
    return found


def _drawn(browser: Browser, scene: Scene, name: str, into: Path) -> Sequence[str]:
    told: list[str] = []
    page = browser.new_page(viewport={"width": _WIDTH, "height": _HEIGHT})
    page.on(
        "console", lambda message: told.append(message.text) if message.type == "error" else None
    )
    page.on("pageerror", lambda error: told.append(str(error)))
    stem = name.removesuffix(".json")
    page.goto(f"{scene.url}/consoles/{stem}.html?{urlencode(_asked(scene, name))}")
    page.wait_for_function("window.outcome !== undefined")
    outcome = page.evaluate("window.outcome")
    page.screenshot(path=into / f"dashboard-{stem}.png", full_page=True)
    empty = [title for title in outcome["empty"] if title not in MAY_BE_EMPTY]
    return [
        *(f"{name}: {line}" for line in (*told, *outcome["wrong"])),
        *(f"{name}: nothing to draw in {title!r}" for title in empty),
    ]


def _asked(scene: Scene, name: str) -> Mapping[str, str]:
    everything = {"job_name": ".+", "run_id": ".+"} if name == "fleet.json" else {}
    times = {"start": str(scene.start_s), "end": str(scene.end_s)}
    return {**scene.values, **everything, **times}
