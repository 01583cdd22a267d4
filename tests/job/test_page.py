"""The page as people meet it: a real browser, a real run with a kill, and clicks."""

import json
import re
import shutil
import signal
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.events import EXIT_CODES, AttemptStarted, Cause, FailureDetected, Outcome, RunStarted
from harness.exporter import Exporter
from harness.rundir import RunDir
from tests.harness import stories
from tests.job.conftest import Job

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the path"),
]
FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
)
DEADLINE_MS = 60_000
PLAN = """
schema = 1
seed = 1
max_faults = 1
[arrival]
instants = [1]
[[faults]]
kind = "kill"
target = "rank 1"
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, port: int) -> Iterator[Any]:
    """The page, and what it complained about as `page.complaints`."""
    context = browser.new_context(
        viewport={"width": 1200, "height": 844}, color_scheme="light", device_scale_factor=1
    )
    page = context.new_page()
    page.set_default_timeout(DEADLINE_MS)
    page.complaints = []
    page.on("console", lambda said: page.complaints.append(f"{said.type}: {said.text}"))
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.goto(f"http://127.0.0.1:{port}/")
    page.locator(
        "#contact", has_text="as of"
    ).wait_for()  # its policy lets nobody evaluate JavaScript
    yield page
    context.close()


def text(page: Any, selector: str) -> str:
    return " ".join(page.locator(selector).inner_text().split())


def step(page: Any) -> str:
    """What the figures say of the step."""
    match = re.search(r"step ([\d,]+)", text(page, "#figures"))
    assert match, text(page, "#figures")
    return match.group(1)


def moved(page: Any, what: Callable[[], object]) -> None:
    """Wait until the page shows something else there."""
    before = what()
    for _ in range(DEADLINE_MS // 100):
        if what() != before:
            return
        page.wait_for_timeout(100)
    pytest.fail(f"the page still shows {before!r}")


def test_a_run_with_a_kill_is_shown_as_it_happens(browser: Any, job: Job, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN)
    launched = job.start(2, "--faults", str(tmp_path / "plan.toml"), script=("--steps", "100000"))
    run_dir = RunDir.at(job.path)
    with Exporter(run_dir, port=0) as exporter, opened(browser, exporter.port) as page:
        _shows_the_kill(page)
        _updates_by_itself_until_paused(page, exporter.port)
        _obeys_clicks(page)
        _names_what_it_shows(page)
        _fits_a_phone_in_the_dark(page)
        launched.signal(signal.SIGTERM)
        assert launched.wait() == EXIT_CODES[Outcome.DRAINED]
        page.locator("#phase", has_text="drained").wait_for()
        assert page.complaints == []


def _shows_the_kill(page: Any) -> None:
    page.get_by_text("back after").first.wait_for()
    assert re.search(r"signal, rank 1: back after [\d.]+ m?s", text(page, "#restarts"))
    assert re.search(r"kill rank 1: confirmed, led to restart 1", text(page, "#faults"))
    assert page.locator("#strip b").count() == 1
    page.locator("#ranks tbody", has_text="stepping").wait_for()
    assert re.search(r"storage \d+", text(page, "#saves"))


def _updates_by_itself_until_paused(page: Any, port: int) -> None:
    moved(page, lambda: step(page))
    page.get_by_role("button", name="Pause").click()
    frozen, asked = step(page), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    moved(page, lambda: told(port)["progress"]["step"])
    page.wait_for_timeout(1500)  # half as long again as from one question to the next
    assert (step(page), asked) == (frozen, [])
    page.get_by_role("button", name="Go on").click()
    moved(page, lambda: step(page))


def _obeys_clicks(page: Any) -> None:
    minute = page.get_by_role("button", name="1 min", exact=True)
    minute.click()
    page.get_by_role("img", name=re.compile("^the last 1.min 0.s: ")).wait_for()
    assert minute.get_attribute("aria-pressed") == "true"
    assert "restart" in text(page, "#split")
    page.get_by_role("button", name="in four kinds").click()
    assert re.fullmatch(r"work .* checkpoint .* lost .* restart .*", text(page, "#split tbody"))
    page.locator("#restarts summary").first.click()
    moved(page, lambda: step(page))
    assert "killed by SIGKILL" in text(page, "#restarts")  # still open, though drawn again


def _names_what_it_shows(page: Any) -> None:
    for role, name in (
        ("img", "training loss from"),
        ("group", "how much time is shown"),
        ("group", "how the time is divided"),
        ("region", "Restarts"),
        ("region", "Ranks"),
        ("table", "Wall time of the whole run, divided"),
    ):
        assert page.get_by_role(role, name=name).count() == 1, (role, name)


def _fits_a_phone_in_the_dark(page: Any) -> None:
    assert _brightness(page) > 220
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 390, "height": 844})
    page.get_by_role("img", name="training loss from").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert _brightness(page) < 40


def _brightness(page: Any) -> float:
    color = page.evaluate("getComputedStyle(document.body).backgroundColor")
    red, green, blue = map(int, re.findall(r"\d+", color)[:3])
    return (red + green + blue) / 3


def told(port: int) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/state.json", timeout=10) as answer:
        state: dict[str, Any] = json.load(answer)
    return state


def test_lost_contact_is_said_and_ends_with_the_next_exporter(browser: Any, tmp_path: Path) -> None:
    run_dir = stories.write(tmp_path / "run", stories.KILLED_ONCE)
    with ExitStack() as later:
        with Exporter(run_dir, port=0) as exporter:
            page = later.enter_context(opened(browser, exporter.port))
        alert = page.get_by_role("alert")
        alert.filter(has_text="No answer from the exporter since").wait_for()
        later.enter_context(Exporter(run_dir, port=exporter.port))
        alert.wait_for(state="hidden")
        run_dir.settings.mkdir()
        alert.filter(has_text="The exporter answers: scrape failed: IsADirectoryError").wait_for()
        run_dir.settings.rmdir()
        alert.wait_for(state="hidden")


def test_what_a_run_says_stays_text(browser: Any, tmp_path: Path) -> None:
    bad = "<img src=x onerror=alert(1)>"
    story = (
        (0, "launcher-0", -1, RunStarted("r1", 2)),
        (10, "launcher-0", 0, AttemptStarted(2)),
        (90, "launcher-0", 0, FailureDetected(1, Cause.EXCEPTION, f"<b>{bad}</b>")),
    )
    run_dir = stories.write(tmp_path / bad, story)
    with Exporter(run_dir, port=0) as exporter, opened(browser, exporter.port) as page:
        page.locator("#restarts summary").click()
        assert f"<b>{bad}</b>" in text(page, "#restarts")
        assert text(page, "h1") == bad
        assert page.locator("img, #restarts b").count() == 0
        assert page.complaints == []
