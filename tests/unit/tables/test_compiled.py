"""The C sources are compiled where there is a compiler, and the library of another source is never loaded."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import pytest

from deltamq.jobs.setup.jars import PROJECT_FOLDER
from deltamq.tables.compiled import SOURCES, compile_sources, find_compiler, library_path

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="there is no C compiler")


def _copied(folder: Path) -> Path:
    for source in SOURCES:
        (folder / source).parent.mkdir(parents=True, exist_ok=True)
        for path in (PROJECT_FOLDER / source, *(PROJECT_FOLDER / source).parent.glob("*.h")):
            shutil.copy(path, (folder / source).parent)
    return folder


def _compiler() -> str:
    found = find_compiler()
    assert found is not None
    return found


def test_every_c_source_is_compiled() -> None:
    found = {
        path.relative_to(PROJECT_FOLDER).as_posix()
        for layer in ("api", "jobs", "mq", "tables")
        for path in (PROJECT_FOLDER / layer).rglob("*.c")
    }
    assert found == set(SOURCES)


@needs_compiler
def test_libraries_lie_beside_their_sources_and_earlier_ones_are_removed(tmp_path: Path) -> None:
    folder = _copied(tmp_path)
    first = compile_sources(folder, _compiler())
    assert first == [library_path(folder / source) for source in SOURCES]
    for source, library in zip(SOURCES, first, strict=True):
        assert hasattr(ctypes.CDLL(str(library)), f"deltamq_{Path(source).stem}")
    changed = folder / SOURCES[0]
    changed.write_bytes(changed.read_bytes() + b"\n/* newer */\n")
    assert not library_path(changed).exists(), "the library of an earlier source is not found"
    kept = {library: library.stat().st_mtime_ns for library in first[1:]}
    second = compile_sources(folder, _compiler())
    assert sorted(folder.rglob("*.so")) == sorted(second)
    assert second[0] != first[0]
    assert {library: library.stat().st_mtime_ns for library in second[1:]} == kept


@needs_compiler
def test_what_does_not_compile_raises_the_compilers_message_and_leaves_nothing(tmp_path: Path) -> None:
    folder = _copied(tmp_path)
    (folder / SOURCES[0]).write_text("int deltamq_publish(void) { return nothing; }", encoding="ascii")
    with pytest.raises(ChildProcessError, match="nothing"):
        compile_sources(folder, _compiler())
    assert not list((folder / SOURCES[0]).parent.glob("*.so")) and not list(folder.rglob("*.tmp"))
