"""HTTP: the server of booting machines (`edge.http.app`, port 7080) and that of operators (`edge.http.admin`, 7081)."""
