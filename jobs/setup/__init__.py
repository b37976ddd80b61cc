"""What an installation needs beside its packages: Java, jars, compiled parts; and how packages of it are built."""

from __future__ import annotations
