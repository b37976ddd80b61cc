"""Where `make setup` puts the compiled native parts: in .venv, named after their very source."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path


def library_path(source: Path) -> Path:
    """Return where the compiled library of this very source lies, if `make setup` could make it."""
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    return Path(sys.prefix, "lib", f"deltamq-{source.stem}-{digest}.so")
