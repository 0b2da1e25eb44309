"""The directory of artifacts, and what goes when there is no room."""
