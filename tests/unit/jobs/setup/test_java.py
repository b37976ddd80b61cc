"""Java is found as Spark finds it, and what is wrong with it is said before Spark fails obscurely."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from deltamq.jobs.setup.java import JavaMissing, find_java

MODULES = "java.base@17\njdk.incubator.vector@17\n"


def _java(folder: Path, *, version: str = 'openjdk version "17.0.15" 2025-04-15', modules: str = MODULES) -> Path:
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    script = f"""#!/bin/sh
case "$1" in
-version) cat >&2 <<'END'
{version}
END
;;
*) cat <<'END'
{modules}
END
;;
esac
"""
    path.write_text(script, encoding="utf-8")
    path.chmod(0o755)
    return path


def test_java_home_wins_over_path(tmp_path: Path) -> None:
    home, other = _java(tmp_path / "home"), _java(tmp_path / "other", version='java version "1.8.0_402"')
    found = find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": f"{other.parent}:/usr/bin:/bin"})
    assert (found.path, found.version) == (home, 17)


def test_java_is_found_on_the_path(tmp_path: Path) -> None:
    path = _java(tmp_path, version='openjdk version "21" 2023-09-19')
    assert find_java({"PATH": f"{path.parent}:/usr/bin:/bin"}).version == 21


WRONG = {
    "too old": ({"version": 'java version "1.8.0_402"'}, "is Java 8"),
    "a little too old": ({"version": 'openjdk version "11.0.2" 2019-01-15'}, "is Java 11"),
    "without the vector module": ({"modules": "java.base@17"}, "jdk.incubator.vector"),
    "not a Java": ({"version": "command not understood"}, "does not say its version"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_java_that_cannot_run_spark_is_named_with_the_remedy(name: str, tmp_path: Path) -> None:
    made, told = WRONG[name]
    _java(tmp_path, **made)
    with pytest.raises(JavaMissing) as caught:
        find_java({"JAVA_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"})
    assert told in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "Install" in str(caught.value)


def test_no_java_at_all_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(JavaMissing, match=r"no java on PATH.*Install"):
        find_java({"PATH": str(tmp_path)})


def test_a_java_home_without_java_is_named(tmp_path: Path) -> None:
    with pytest.raises(JavaMissing, match=r"JAVA_HOME is .*Correct or unset it"):
        find_java({"JAVA_HOME": str(tmp_path)})


def test_it_is_looked_for_before_any_package_is_installed() -> None:
    root = Path(__file__).parents[4]
    command = [sys.executable, "-S", "-m", "deltamq.jobs.setup.java"]
    done = subprocess.run(command, env={"PYTHONPATH": str(root / ".path")}, capture_output=True, text=True, check=False)
    assert "Error" not in done.stderr, "Java may be missing, its search may not"
    assert done.returncode in (0, 1)
