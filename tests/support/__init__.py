"""What tests of all packages share: builders of objects, an API in the process, informers, virtual time."""
