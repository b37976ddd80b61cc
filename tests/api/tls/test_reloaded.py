from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest

from deltamq.api.tls import LOOK_S, ReloadedContext


class Made:
    """Makes a new context each time, unless told to fail."""

    def __init__(self) -> None:
        self.made: list[ssl.SSLContext] = []
        self.fails = False

    def __call__(self) -> ssl.SSLContext:
        if self.fails:
            raise ssl.SSLError("the files do not fit")
        self.made.append(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        return self.made[-1]


class Clock:
    now_s = 10.0

    def __call__(self) -> float:
        return self.now_s


def test_sec_27_a_context_is_made_anew_when_a_file_has_changed(tmp_path: Path) -> None:
    file, make, clock = tmp_path / "cert.pem", Made(), Clock()
    file.write_text("one")
    context = ReloadedContext(make, [str(file)], now_s=clock)
    first = context.present()
    clock.now_s += LOOK_S
    assert context.present() is first, "nothing has changed"
    file.write_text("the second")
    assert context.present() is first, "it looks once a second"
    clock.now_s += LOOK_S
    second = context.present()
    assert second is not first and make.made == [first, second]


def test_sec_27_files_that_do_not_fit_keep_the_earlier_context_and_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, make, clock = tmp_path / "cert.pem", Made(), Clock()
    file.write_text("one")
    context = ReloadedContext(make, [str(file)], now_s=clock)
    first = context.present()
    make.fails = True
    file.unlink()
    for _ in range(3):
        clock.now_s += LOOK_S
        assert context.present() is first
    assert caplog.text.count("event=tls_files_refused") == 1
    make.fails = False
    file.write_text("again")
    clock.now_s += LOOK_S
    assert context.present() is not first


def test_sec_27_a_link_that_points_elsewhere_is_a_change(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("same size")
        os.utime(tmp_path / name, (1_000, 1_000))
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "a")
    make, clock = Made(), Clock()
    context = ReloadedContext(make, [str(link)], now_s=clock)
    first = context.present()
    link.unlink()
    link.symlink_to(tmp_path / "b")
    clock.now_s += LOOK_S
    assert context.present() is not first


def test_sec_27_the_first_files_must_be_right(tmp_path: Path) -> None:
    make = Made()
    make.fails = True
    with pytest.raises(ssl.SSLError):
        ReloadedContext(make, [str(tmp_path / "none")])


def test_a_context_without_files_is_made_when_it_is_first_needed() -> None:
    make = Made()
    context = ReloadedContext(make, [])
    assert make.made == []
    assert context.present() is context.present() is make.made[0] and len(make.made) == 1
