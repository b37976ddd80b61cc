"""What Airflow reads of this package at its start, by the entry point `apache_airflow_provider`."""

from __future__ import annotations


def provider_info() -> dict[str, object]:
    """Return the description of the provider; Airflow loads its queue when a trigger asks for one."""
    return {
        "package-name": "deltamq",
        "name": "DeltaMQ",
        "description": "Events of Airflow for messages of DeltaMQ.",
        "queues": ["deltamq.mq.client.airflow.message_queue.DeltaMQProvider"],
    }
