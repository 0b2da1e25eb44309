"""What `tinkedge watch` shows in a terminal: all machines (table), one of them (machine), and their words (words)."""
