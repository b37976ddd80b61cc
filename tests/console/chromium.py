"""Debian's Chromium for tests and pictures; what draws has no process of its own, which is a quarter of its time."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Final

import pytest
from playwright.sync_api import Browser, sync_playwright

__all__ = ["CHROMIUM", "chromium", "needs_chromium"]

CHROMIUM: Final = shutil.which("chromium")
needs_chromium: Final = pytest.mark.skipif(
    CHROMIUM is None, reason="these tests drive Debian's Chromium: apt-get install chromium"
)
_ARGUMENTS: Final = ("--no-sandbox", "--disable-gpu", "--disable-software-rasterizer", "--in-process-gpu")


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Run a browser until the block ends."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=_ARGUMENTS)
        yield browser
        browser.close()
