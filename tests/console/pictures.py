"""The README's pictures of the console: a real service with jobs, minutes of sends and workers, and Chromium.

    .venv/bin/python -m tests.console.pictures [MINUTES] [FOLDER]

Without a folder they go to `api/console/screens`, light; with one, in both schemes and widths, to be looked at.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from playwright.sync_api import Browser, ViewportSize, expect

from deltamq import Admin, PopConsumer, Producer, Result
from deltamq.mq.client.messages.received import PoppedMessage
from tests.console.chromium import chromium
from tests.e2e.up_process import Up

_SCREENS: Final = Path(__file__).parents[2] / "api" / "console" / "screens"
_README: Final[ViewportSize] = {"width": 1180, "height": 820}
_WIDTHS: Final[tuple[ViewportSize, ...]] = ({"width": 1400, "height": 900}, {"width": 390, "height": 844})
_SCHEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
#: Each picture's address, and what the page shows once it is there.
_PAGES: Final = {
    "overview": ("#/?range=15m", "Groups with most to do"),
    "group": ("#/groups/billing?range=15m", "Lag by partition"),
}


def _send(url: str, stop: threading.Event) -> None:
    draw, number = random.Random(1), 0
    with Producer(url) as producer:
        while not stop.wait(0.25):
            busy = 8 if number % 240 < 90 else 3
            for _ in range(draw.randrange(busy)):
                number += 1
                body = {"order": number, "amount": round(3.5 * (number % 97) + 1, 2), "currency": "EUR"}
                key, tag = f"order-{number % 40}", ("created", "paid", "shipped")[number % 3]
                topic = "payments" if number % 4 == 0 else "orders"
                producer.send_soon(topic, json.dumps(body), key=key, tag=tag, headers={"region": "eu"})


def _bill(message: PoppedMessage) -> Result | None:
    time.sleep(0.15)
    order = json.loads(message.text)["order"]
    if order % 23 == 0 and message.delivery_attempt == 1:
        return Result.RETRY(delay_ms=5_000)
    return Result.DEAD("no such account") if order % 61 == 0 else None


@contextlib.contextmanager
def _busy(url: str, minutes: float) -> Iterator[tuple[str | None, int | None]]:
    """Run producers and workers; after some minutes yield the partition and offset of a message that has died."""
    with Admin(url) as admin:
        admin.create_topic("orders", partitions=3)
        admin.create_topic("payments", partitions=2)
        stop = threading.Event()
        sender = threading.Thread(target=_send, args=(url, stop))
        sender.start()
        workers = [PopConsumer(url, group, "orders", _bill, concurrency=2) for group in ("billing", "shipping")]
        threads = [threading.Thread(target=worker.run) for worker in workers]
        for thread in threads:
            thread.start()
        try:
            time.sleep(60 * minutes)  # the plots are of that time
            origin = admin.dead_letters("billing").messages[0].origin
            assert origin is not None, "the worker gave it up"
            yield origin.partition, origin.offset
        finally:
            stop.set()
            for worker in workers:
                worker.close()
            for thread in (sender, *threads):
                thread.join()


def _take(
    browser: Browser, url: str, pages: dict[str, tuple[str, str]], size: ViewportSize, scheme: Literal["light", "dark"]
) -> dict[str, bytes]:
    context = browser.new_context(viewport=size, color_scheme=scheme)
    context.add_init_script(f"sessionStorage.setItem('deltamq.key', '{os.environ['DELTAMQ_CLIENT_TOKEN']}')")
    page, taken = context.new_page(), {}
    for name, (address, shown) in pages.items():
        page.goto(f"{url}/{address}")
        page.get_by_text(shown).first.wait_for()
        page.wait_for_load_state("networkidle")
        expect(page.get_by_text("Loading …")).to_have_count(0, timeout=30_000)
        page.wait_for_timeout(1_500)  # plots are drawn
        taken[name] = page.screenshot()
    context.close()
    return taken


def main() -> None:
    """Take the pictures."""
    minutes, folder = float((sys.argv[1:] or ["15"])[0]), Path(sys.argv[2]) if len(sys.argv) > 2 else None
    with tempfile.TemporaryDirectory() as temporary, contextlib.ExitStack() as stack:
        warehouse = Path(temporary) / "lake"
        init = [sys.executable, "-m", "deltamq.mq.client.cli", "auth", "init", "--warehouse", str(warehouse), "--json"]
        key = json.loads(subprocess.run(init, capture_output=True, check=True).stdout)["key"]
        os.environ |= {"DELTAMQ_SERVICE_AUTH": "true", "DELTAMQ_CLIENT_TOKEN": key}
        up = Up(warehouse, "--port", "0")
        stack.callback(up.close)
        partition, offset = stack.enter_context(_busy(up.url, minutes))
        pages = _PAGES | {"message": (f"#/topics/orders/messages/{partition}/{offset}", "Its life")}
        browser = stack.enter_context(chromium())
        for size in (_README,) if folder is None else _WIDTHS:
            for scheme in _SCHEMES[:1] if folder is None else _SCHEMES:
                for name, image in _take(browser, up.url, pages, size, scheme).items():
                    more = "" if folder is None else f"-{size['width']}-{scheme}"
                    (folder or _SCREENS).joinpath(f"{name}{more}.png").write_bytes(image)


if __name__ == "__main__":
    main()
