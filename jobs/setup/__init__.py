"""What `make setup` does, with the standard library alone: packages, Java, jars."""
