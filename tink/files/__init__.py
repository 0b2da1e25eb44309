"""Files that only their owner can read: the data directory, and the keys and tokens in it."""
