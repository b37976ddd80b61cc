"""What a client of the service waits for, and how much goes through, over REST."""
