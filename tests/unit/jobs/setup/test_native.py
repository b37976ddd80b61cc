"""`make setup` compiles the native part where it can, and says once where it cannot."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from deltamq.jobs.setup import __main__ as setup
from deltamq.jobs.setup.native import SOURCES, build_library, find_compiler, is_built, library_path

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")


def _compiler() -> str:
    found = find_compiler()
    assert found is not None
    return found


@needs_compiler
@pytest.mark.parametrize("original", SOURCES, ids=[source.stem for source in SOURCES])
def test_a_library_is_compiled_and_earlier_ones_are_removed(tmp_path: Path, original: Path) -> None:
    source, folder = tmp_path / original.name, tmp_path / "lib"
    folder.mkdir()
    source.write_bytes(original.read_bytes())
    assert build_library(_compiler(), source, folder) is None
    first = library_path(source, folder)
    assert hasattr(ctypes.CDLL(str(first)), f"deltamq_{original.stem}")
    source.write_bytes(original.read_bytes() + b"\n/* newer */\n")
    assert not is_built(source, folder)
    assert build_library(_compiler(), source, folder) is None
    assert is_built(source, folder)
    assert list(folder.iterdir()) == [library_path(source, folder)] != [first]


@needs_compiler
def test_what_does_not_compile_leaves_its_message_alone(tmp_path: Path) -> None:
    source, folder = tmp_path / "publish.c", tmp_path / "lib"
    folder.mkdir()
    source.write_text("int deltamq_publish(void) { return nothing; }")
    message = build_library(_compiler(), source, folder)
    assert message is not None and "nothing" in message
    assert list(folder.iterdir()) == []


def test_a_machine_without_a_compiler_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup, "STAMP_OF_NATIVE", tmp_path / "stamp")
    monkeypatch.setattr(setup, "is_built", lambda source: False)
    monkeypatch.setattr(setup, "find_compiler", lambda: None)
    assert not setup._native()
    assert "apt-get install gcc" in capsys.readouterr().out
    assert not setup._native()
    assert capsys.readouterr().out == ""
