"""The Spark application: sessions and their settings, `format("mq")`, and running jobs in it."""

from __future__ import annotations
