"""Topics into typed tables, and what is done by hand: replay of dead letters, reset of offsets."""
