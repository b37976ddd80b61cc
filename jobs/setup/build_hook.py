"""Hatchling's hook: the compiled parts, and the target of the file with the names that users import."""

from __future__ import annotations

import importlib.util
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class DeltaMQHook(BuildHookInterface[Any]):
    """Compiles the C sources if there is a compiler; gives a wheel its `__init__.py` and `py.typed` from `mq/client`.

    A wheel with compiled parts is for this platform and any Python: the libraries do not use Python's interface. In a
    checkout (`version` is "editable"), a link is the `__init__.py`.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and set the wheel's files and tag."""
        libraries = self._compiled()
        if version == "editable":
            return
        build_data["force_include"]["mq/client/deltamq.py"] = "deltamq/__init__.py"
        # what says that the package has types counts only at its top (PEP 561)
        build_data["force_include"]["mq/client/py.typed"] = "deltamq/py.typed"
        for library in libraries:
            build_data["force_include"][str(library)] = f"deltamq/{library.relative_to(self.root).as_posix()}"
        if libraries:
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data |= {"pure_python": False, "tag": f"py3-none-{platform}"}

    def _compiled(self) -> list[Path]:
        spec = importlib.util.spec_from_file_location("compiled", Path(self.root, "tables", "compiled.py"))
        assert spec is not None and spec.loader is not None
        compiled = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(compiled)
        compiler = compiled.find_compiler()
        if compiler is None:
            self.app.display_warning("no C compiler: DeltaMQ works without, small commits are slower under load")
            return []
        try:
            libraries: list[Path] = compiled.compile_sources(Path(self.root), compiler)
        except ChildProcessError as error:
            self.app.display_warning(f"not compiled, so small commits are slower under load: {error}")
            return []
        return libraries
