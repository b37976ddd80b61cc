"""SQL finds the logical partition of a key as routes do (SPEC ROUTE-4): real Spark against both of our forms."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from deltamq.mq.partitioners import hash_string, logical_partition, logical_partitions

pytestmark = pytest.mark.spark

# One to four bytes in UTF-8, NUL, the edges of each length, and what sign extension treats differently.
_LETTERS = "aZ09-_. \0\x7f\x80é\u07ff\u0800订\uffff\U00010000🚚\U0010ffff"


def _keys() -> list[str]:
    seeded = random.Random(2026)
    mixed = ["".join(seeded.choices(_LETTERS, k=seeded.randrange(0, 40))) for _ in range(5_000)]
    plain = [f"order-{number}" for number in range(5_000)]
    return ["", *_LETTERS, "k" * 4096, *plain, *mixed]


def test_route_4_sparks_hash_and_both_of_ours_agree(spark: SparkSession) -> None:
    keys = _keys()
    rows = spark.createDataFrame(list(enumerate(keys)), "n int, key string")
    found = rows.selectExpr("n", "hash(key) AS hash", "pmod(hash(key), 1024) AS lp").orderBy("n").collect()
    wrong = [
        (keys[row.n], row.hash, row.lp)
        for row in found
        if (row.hash, row.lp) != (hash_string(keys[row.n]), logical_partition(keys[row.n]))
    ]
    assert wrong == []

    _, offsets, data = pa.array(keys, pa.large_string()).buffers()
    lps = logical_partitions(np.frombuffer(offsets, dtype=np.int64), np.frombuffer(data, dtype=np.uint8))
    assert lps.tolist() == [row.lp for row in found]
