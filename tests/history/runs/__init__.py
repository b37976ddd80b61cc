"""Runs: services and jobs, clients, a nemesis, the end with its witnesses."""
