"""The commands about what is stored: a data directory to a file and back, all objects to another API."""
