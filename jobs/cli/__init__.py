"""The commands `deltamq jobs` and `deltamq verify`."""
