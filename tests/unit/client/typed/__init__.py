"""Programs of users, for type checkers."""
