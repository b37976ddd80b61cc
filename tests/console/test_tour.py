"""An operator's tour: what goes wrong for real is on the overview within seconds, and is mended from the console.

A real service and its jobs in processes of their own, on a small disk, and a browser: a worker that is gone with
messages in its hands, a handler that fails, jobs that have stopped, a disk that fills (SPEC LOOK-9).
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from deltamq import Admin, PopClient, PopConsumer, PoppedMessage, Producer
from tests.api.running import until
from tests.console.chromium import chromium, needs_chromium
from tests.e2e.up_process import Up
from tests.faults.small_disk import SmallDisk, mounted

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    needs_chromium,
]
#: A quiet machine shows each fault within 15 s; a loaded one gets more.
_PATIENCE_MS = 90_000
_DISK_MIB = 96


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallDisk]:
    with mounted(tmp_path_factory.mktemp("disk"), _DISK_MIB) as disk:
        yield disk


@pytest.fixture(scope="module")
def up(disk: SmallDisk) -> Iterator[Up]:
    with pytest.MonkeyPatch.context() as environ:
        # What retention takes leaves the disk when no reader can have it any more.
        environ.setenv("DELTAMQ_LOG_FILE_KEEP_MS", "2000")
        environ.setenv("DELTAMQ_JOBS_RETAIN_EVERY_S", "2")
        made = Up(disk.folder / "w", "--port", "0")
        yield made
        made.close()


@pytest.fixture(scope="module")
def page(up: Up) -> Iterator[Page]:
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.set_default_timeout(_PATIENCE_MS)
        expect.set_options(timeout=_PATIENCE_MS)
        page.goto(up.url)
        yield page
        expect.set_options(timeout=None)


def shown(page: Page, text: str) -> float:
    """Wait until the list of what is wrong has a line with this text; return the seconds that it took."""
    began = time.monotonic()
    page.evaluate("location.hash = '#/'")
    expect(page.get_by_role("listitem").filter(has_text=text).first).to_be_visible()
    return time.monotonic() - began


def gone(page: Page, text: str) -> None:
    page.evaluate("location.hash = '#/'")
    expect(page.get_by_role("listitem").filter(has_text=text)).to_have_count(0)


def test_look_09_a_disk_that_fills_is_seen_and_a_topic_that_keeps_less_makes_room(
    disk: SmallDisk, up: Up, page: Page
) -> None:
    seen = threading.Event()

    def fill() -> None:
        """Keep the disk nearly full: files that were merged leave it later, and make room."""
        with Producer(up.url) as producer:
            while not seen.wait(0.05):
                usage = shutil.disk_usage(disk.folder)
                if usage.free * 12 > usage.total:
                    producer.send_batch("bulky", [os.urandom(50_000) for _ in range(20)])

    filling = threading.Thread(target=fill)
    filling.start()
    try:
        until(lambda: (usage := shutil.disk_usage(disk.folder)).free * 12 <= usage.total)
        print(f"a full disk is on the overview after {shown(page, 'The disk is nearly full'):.1f} s")
    finally:
        seen.set()
        filling.join()
    page.get_by_role("listitem").filter(has_text="nearly full").get_by_role("link", name="Look").click()
    page.get_by_role("row").nth(1).get_by_role("link", name="bulky").click()
    page.get_by_label("Parts of the topic").get_by_role("link", name="Settings").click()
    page.get_by_label("Keep at most, in MiB of each partition").fill("1")
    page.get_by_role("button", name="Change", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Change, ").click()
    expect(page.get_by_text("The topic is changed.")).to_be_visible()
    gone(page, "The disk is nearly full")


def test_messages_of_a_worker_that_is_gone_are_seen_with_who_had_them(up: Up, page: Page) -> None:
    with Producer(up.url) as producer:
        producer.send_batch("orders", [str(number) for number in range(5)])
    with PopClient(up.url, "billing", client_id="worker-7") as worker:
        assert len(worker.pop("orders", max_messages=5, invisible_ms=600_000, wait_ms=5_000).messages) >= 1
    page.evaluate("location.hash = '#/groups/billing/in-flight'")
    expect(page.get_by_text("worker-7").first).to_be_visible()


def test_dead_letters_of_a_handler_that_fails_are_seen_and_sent_back(up: Up, page: Page) -> None:
    broken = True
    handled: list[str] = []

    def handle(message: PoppedMessage) -> None:
        if broken:
            raise ValueError("the amount is not a number")
        handled.append(message.text)

    with Admin(up.url) as admin:
        admin.create_group("booking", max_attempts=1)
    with (
        Producer(up.url) as producer,
        PopConsumer(up.url, "booking", "bookings", handle, invisible_ms=1_000),
    ):
        producer.send("bookings", "first")
        page.evaluate("location.hash = '#/groups/booking/dead-letters'")
        expect(page.get_by_text("max_attempts").first).to_be_visible()
        producer.send_batch("bookings", [str(number) for number in range(5)])
        print(f"dead letters are on the overview after {shown(page, 'Dead letters of booking grow'):.1f} s")
        with Admin(up.url) as admin:
            until(lambda: admin.dead_letters("booking").total == 6)
        broken = False
        page.get_by_role("listitem").filter(has_text="of booking grow").get_by_role("link", name="Look").click()
        page.get_by_role("button", name="Send back", exact=True).click()
        page.get_by_role("dialog").get_by_role("button", name="Send back 6").click()
        expect(page.get_by_text("6 letters sent back.")).to_be_visible()
        until(lambda: len(handled) == 6)


def test_jobs_that_have_stopped_are_seen_and_so_is_that_they_run_again(up: Up, page: Page) -> None:
    (jobs,) = [child for child in up.children() if "jobs" in child.cmdline()]
    jobs.suspend()
    try:
        print(f"jobs that have stopped are on the overview after {shown(page, 'has not run again for'):.1f} s")
    finally:
        jobs.resume()
    gone(page, "has not run again for")
