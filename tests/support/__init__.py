"""Shared by the tests of all packages: builders of objects, an in-process API, informers, virtual time."""
