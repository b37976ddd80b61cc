"""Jobs that move messages: what nobody acknowledged in time, and what was delayed."""
