"""The flights of 2013 as events, and the aircraft for which a handler fails."""
