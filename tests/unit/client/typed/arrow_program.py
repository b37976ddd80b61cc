"""User code with Arrow's tables: as typed as pyarrow is, which brings no types. Nothing here runs."""

from __future__ import annotations

import pyarrow as pa

from deltamq import PopClient, PopConsumer, PopTable, Producer, PullConsumer, Result, SentBatch, TableProgress

URL = "http://127.0.0.1:8080"


def send(producer: Producer, table: pa.Table) -> list[str]:
    def show(progress: TableProgress) -> None:
        print(progress.rows_stored)

    sent: SentBatch = producer.send_arrow("orders", table)
    print(
        producer.send_table("orders", table, progress=show).count, producer.send_arrow("orders", table.to_batches()[0])
    )
    return [one.partition for one in sent]


def read(consumer: PullConsumer, client: PopClient) -> int:
    rows = consumer.poll_arrow()
    popped: PopTable = client.pop_arrow("orders", filter="region = 'eu'")
    return len(popped.rows) + (0 if rows is None else len(rows))


def bill(table: pa.Table) -> Result:
    return Result.OK if len(table) else Result.RETRY


def consume() -> None:
    PopConsumer(URL, "billing", "orders", bill, format="arrow").run()
