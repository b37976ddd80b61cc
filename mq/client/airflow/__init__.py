"""Airflow's message queues: a trigger that fires for each message of a topic."""
