"""How an artifact comes from its upstream."""
