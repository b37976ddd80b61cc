"""Files of named SQL statements: each begins with a line `-- name: ...`."""

from __future__ import annotations

from pathlib import Path
from string import Template


def statements(file: Path, **values: object) -> dict[str, str]:
    """Return the statements of a file by name; `values` replace their placeholders `${...}`."""
    by_name = {}
    for block in file.read_text(encoding="utf-8").split("-- name: ")[1:]:
        name, _, text = block.partition("\n")
        by_name[name.strip()] = Template(text.strip()).substitute(values)
    return by_name
