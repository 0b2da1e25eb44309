"""Where the parts of a bundle come from, on a host that has a route: packages (`debian`), images (`images`), files by
their URLs (`download`)."""
