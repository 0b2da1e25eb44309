"""The output of `tinkedge watch`: all machines (table), one of them (machine), and their words (words)."""
