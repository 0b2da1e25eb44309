"""The life of a process that serves.

service_manager   messages to systemd: readiness, status, watchdog
reload            SIGHUP
health            probes and metrics over HTTP
memory            the memory that the process may use, and that of an edge with very many machines
"""
