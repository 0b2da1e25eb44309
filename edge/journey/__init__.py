"""What happened to each machine, step by step: the events, their keeper, and what becomes an event."""
