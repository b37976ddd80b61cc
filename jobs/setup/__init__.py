"""Java, jars and compiled parts, which an installation needs beside its packages; and building its packages."""

from __future__ import annotations
