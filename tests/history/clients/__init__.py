"""The clients of a run: each records what it asked for and what it was told."""
