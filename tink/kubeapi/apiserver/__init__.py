"""The Kubernetes API server on one machine: SQLite instead of etcd, one process instead of a cluster."""
