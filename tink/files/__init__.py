"""Files that are for their owner alone: the data directory, and the keys and tokens in it."""
