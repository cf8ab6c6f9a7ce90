"""The page of the admin endpoint in a real Chromium: what it says in each state, how it refreshes, who can read it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sidecar.core.books import Books, DeliveryCounts, OpenGroup, OpenMessages
from sidecar.ops.admin import AdminServer
from sidecar.ops.health import KINDS, Problem
from sidecar.ops.metrics import Metrics
from sidecar.ops.page import LetterKind
from sidecar.ops.snapshot import NO_ACTIVITY, PartitionStatus, RetryingGroup, StatusSnapshot
from tests.support.chromium import Browser, browser
from tests.support.jars import ROOT
from tests.support.process import wait_until
from tests.support.scene import Scene

HOSTILE = "</title><script>document.body.dataset.hit=1</script><img src=x onerror='document.body.dataset.hit=1'>"
SINCE = "2026-11-26T15:20:00+00:00"
PARTITIONS = tuple(
    PartitionStatus(12_000 + n, 9_000, topic="orders", partition=n, watermark=1_200, position=1_207, lag=n * 37)
    for n in range(12)
)
HEALTHY = StatusSnapshot(
    "orders-sidecar",
    "2026-11-26T12:00:00+00:00",
    "0.1.0",
    live=True,
    totals=Books(144_000, 108_000, 500, 35_497, 3),
    lag=2_442,
    partitions=PARTITIONS,
    held_bytes=3 << 20,
    budget_bytes=44 << 20,
    activity=replace(
        NO_ACTIVITY, delivered=DeliveryCounts({"created": 60_000, "paid": 30_000}, {"created": 6_000_000})
    ),
)
STATES = {
    "starting": replace(HEALTHY, totals=Books(), partitions=(), problems=(Problem("starting", "joins the group"),)),
    "healthy": HEALTHY,
    "degraded": replace(
        HEALTHY,
        problems=(
            Problem("dead_letters", "3 dead letters in the last 5 minutes"),
            Problem("group", "group paid fails since 15:20: HTTP 503: the database is away"),
        ),
        retries_waiting=1,
        retrying=(RetryingGroup("paid", 7, SINCE, "HTTP 503: the database is away", "2026-11-26T15:40:09+00:00"),),
        dead_letters=3,
        waiting=OpenMessages({}, {"paid": OpenGroup(1, 500, 120_000, 1_795_700_000_000)}),
    ),
    "memory": replace(
        HEALTHY,
        held_bytes=36 << 20,
        intake_stopped=("memory",),
        problems=(Problem("memory", "nothing is read: memory.budget is used up to 80%"),),
    ),
    "halted": replace(
        HEALTHY, intake_stopped=("halted",), problems=(Problem("halted", "the sink refuses every request: HTTP 401"),)
    ),
    "draining": replace(HEALTHY, intake_stopped=("draining",), problems=(Problem("draining", "a stop was requested"),)),
    "no broker": replace(
        HEALTHY, lag=None, problems=(Problem("broker", "no broker of localhost:9092 answers: Connection refused"),)
    ),
}


class Page:
    """An admin endpoint whose snapshot a test changes, in a browser."""

    def __init__(self, browser: Browser) -> None:
        self.now, self.browser = HEALTHY, browser
        self.server = AdminServer(("127.0.0.1", 0), lambda: self.now, Metrics(lambda: self.now).render)
        self.server.open()

    def show(self, now: StatusSnapshot, *, width: int = 1_280, dark: bool = False) -> None:
        """Open the page of a snapshot."""
        self.now = now
        self.browser.open(self.server.url, width=width, dark=dark)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One browser for all."""
    with browser() as one:
        yield one


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    """A page that is served."""
    one = Page(chromium)
    yield one
    one.server.close()


@pytest.mark.parametrize("name", STATES)
def test_each_state_is_told_with_its_cure(page: Page, name: str) -> None:
    """The word, the reason and the next step of the worst problem are in the heading's section, and in the title."""
    now = STATES[name]
    page.show(now)
    shown = page.browser.text("[data-part=health]")
    assert shown.startswith(now.health.state)
    assert now.health.reason in shown
    assert now.health.next_step in shown
    assert page.browser.driver.title == f"orders-sidecar: {now.health.state}"
    assert all(KINDS[problem.kind].next_step in shown for problem in now.problems)


@pytest.mark.parametrize("width", [360, 1_280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_everybody_can_read_it(page: Page, width: int, dark: bool) -> None:
    """On a phone and a desktop, dark and light: axe-core finds nothing serious, nothing is wider than the screen."""
    for now in STATES.values():
        page.show(now, width=width, dark=dark)
        assert page.browser.violations() == []
        assert page.browser.run("return document.documentElement.scrollWidth <= window.innerWidth")
    color = page.browser.run("return getComputedStyle(document.body).backgroundColor")
    assert (color == "rgb(18, 23, 29)") == dark


def test_it_refreshes_in_place(page: Page) -> None:
    """New numbers, words and sections appear without a new page: the place and what is focused stay."""
    page.show(HEALTHY)
    page.browser.run("window.mine = 1; document.getElementById('pause').focus(); window.scrollTo(0, 200)")
    page.now = STATES["degraded"]
    wait_until(lambda: "degraded" in page.browser.text("[data-part=health]"), 15, "the new word is shown")
    wait_until(lambda: "database is away" in page.browser.text("[data-part=optional]"), 15, "the new section is shown")
    # The browser keeps what is looked at in its place when something is put above it.
    assert page.browser.run("return [window.mine, window.scrollY >= 200, document.activeElement.id]") == [
        1,
        True,
        "pause",
    ]
    assert page.browser.driver.title == "orders-sidecar: degraded"


def test_it_can_be_paused_by_the_keyboard(page: Page) -> None:
    """The button stops the refreshes and starts them again; it says so to a screen reader."""
    page.show(HEALTHY)
    page.browser.run("document.getElementById('pause').focus()")
    page.browser.driver.switch_to.active_element.send_keys(" ")
    assert page.browser.run("return document.getElementById('pause').getAttribute('aria-pressed')") == "true"
    page.now = STATES["halted"]
    asked = page.browser.run("return performance.getEntriesByType('resource').length")
    time.sleep(6)  # longer than from one refresh to the next
    assert page.browser.text("[data-part=health]").startswith("healthy")
    assert page.browser.run("return performance.getEntriesByType('resource').length") == asked
    page.browser.driver.switch_to.active_element.send_keys(" ")
    wait_until(lambda: page.browser.text("[data-part=health]").startswith("stopped"), 15, "it goes on")


def test_a_daemon_that_is_gone_is_told(page: Page) -> None:
    """What is shown then is old, and the page says so."""
    page.show(HEALTHY)
    page.server.close()
    wait_until(lambda: "does not answer" in page.browser.text("#gone"), 15, "it is told")


def test_nothing_that_is_shown_is_run(page: Page) -> None:
    """Names and reasons that are HTML are text, and no other host is asked."""
    hostile = replace(
        STATES["degraded"],
        group_id=HOSTILE,
        partitions=(replace(PARTITIONS[0], topic=HOSTILE),),
        problems=(Problem("group", HOSTILE),),
        retrying=(RetryingGroup(HOSTILE, 1, HOSTILE, HOSTILE, HOSTILE),),
        activity=replace(NO_ACTIVITY, delivered=DeliveryCounts({HOSTILE: 1}, {HOSTILE: 1})),
    )
    page.show(hostile)
    assert page.browser.text("h1") == HOSTILE
    assert page.browser.run("return document.body.dataset.hit || null") is None
    assert page.browser.run("return performance.getEntriesByType('resource').map((each) => each.name)") == []


def test_three_thousand_groups_are_not_all_shown(page: Page) -> None:
    """A table ends after 100 rows, and tells how many there are."""
    many = {f"group-{n}": n for n in range(3_000)}
    page.show(replace(HEALTHY, activity=replace(NO_ACTIVITY, delivered=DeliveryCounts(many, many))))
    assert page.browser.run("return document.querySelectorAll('[data-part=optional] tbody tr').length") == 100
    assert "2,900 more are not shown" in page.browser.text("[data-part=optional]")
    assert page.browser.run("return document.documentElement.outerHTML.length") < 200_000


def test_the_page_of_a_real_daemon(scene: Scene, chromium: Browser) -> None:
    """What it delivered, and what it waits for when the receiver fails."""
    with scene.daemon() as daemon:
        scene.send([b"one", b"two"])
        scene.await_all(daemon)
        chromium.open(daemon.admin_url)
        wait_until(lambda: chromium.text("[data-part=health]").startswith("healthy"), 20, "it is healthy")
        scene.receiver.fail("status", status=503)
        scene.send([b"three"])
        wait_until(lambda: "HTTP 503" in chromium.text("[data-part=optional]"), 30, "the failing group is shown")
        assert chromium.text("[data-part=health]").startswith("degraded")


def test_dead_letters_are_shown_and_replayed_with_the_token(scene: Scene, chromium: Browser) -> None:
    """By reason; a wrong token opens nothing, the right one shows a message, and delivers all of a reason again."""
    token = "0123456789abcdef"
    with scene.daemon(admin={"token": token}, batch={"max_messages": 1}) as daemon:
        daemon.wait_ready()
        scene.receiver.fail("refuse", status=400, marker="poison")
        sent = scene.send([b"poison 1", b"poison 2"])
        wait_until(lambda: daemon.status()["dead_letters_stored"] == 2, 20, "they are stored", detail=daemon.log_tail)
        scene.receiver.control({"faults": []})
        chromium.open(daemon.admin_url)
        wait_until(lambda: "HTTP 400" in chromium.text("[data-part=letters] tbody"), 20, "the reason is shown")
        assert chromium.violations() == []
        chromium.run("document.getElementById('token').value = 'wrong'; document.getElementById('list-0').click()")
        wait_until(lambda: "admin.token is needed" in chromium.text("#told"), 10, "it is refused")
        chromium.run("document.getElementById('token').value = arguments[0]", token)
        chromium.run("document.getElementById('list-0').click()")
        wait_until(lambda: chromium.run("return document.querySelectorAll('#shown details').length") == 2, 10, "a list")
        chromium.run("document.querySelector('#shown details').open = true")
        wait_until(lambda: '"topic"' in chromium.text("#shown pre"), 10, "a letter is shown")
        chromium.run("document.getElementById('replay-0').focus(); window.confirm = () => true")
        chromium.run("document.getElementById('replay-0').click()")
        wait_until(lambda: "2 dead letters were delivered, 0 stay" in chromium.text("#told"), 30, "it has ended")
        assert sorted(scene.receiver.rows()) == sorted(sent)
        wait_until(lambda: "HTTP 400" not in chromium.text("[data-part=letters]"), 15, "none is left")


def test_focus_stays_on_a_button_that_is_replaced(page: Page) -> None:
    """One more letter of a reason replaces the table's row; who is at its button by keyboard stays there."""
    kinds = [LetterKind("paid", "HTTP 400", 1, 0, 0, 1)]
    page.server.close()
    page.server = AdminServer(
        ("127.0.0.1", 0),
        lambda: page.now,
        Metrics(lambda: page.now).render,
        tokens={"letters": "x"},
        kinds=lambda: kinds,
    )
    page.server.open()
    page.show(STATES["degraded"])
    page.browser.run("document.getElementById('replay-0').focus()")
    kinds[0] = LetterKind("paid", "HTTP 400", 1_234, 0, 0, 1)
    wait_until(lambda: "1,234" in page.browser.text("[data-part=letters]"), 15, "the new count is shown")
    assert page.browser.run("return document.activeElement.id") == "replay-0"


@pytest.mark.skipif("SIDECAR_SCREENSHOTS" not in os.environ, reason="writes the pictures of the documents")
@pytest.mark.parametrize("name", ["healthy", "degraded", "halted"])
def test_the_pictures_are_taken(page: Page, name: str) -> None:
    """The pictures in the documents are of this page."""
    page.show(STATES[name], width=1_000)
    target: Path = ROOT / "docs" / "images" / f"page-{name}.png"
    assert page.browser.driver.save_screenshot(str(target))
