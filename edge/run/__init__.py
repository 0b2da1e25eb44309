"""The composition root. Only the command line uses it.

graph           makes the parts from the settings, starts them in order and stops them in reverse
context         the parts that all services of a process share, and its background tasks
settings        the settings of all services
serving         the servers for machines; networks/: the networks that they serve; boot_settings: what all machines get
operators       the operators' HTTP; about: the description of this process there
boot_watch      compares the progress of boots with their expectations
reviews         admission reviews and conversion webhooks; examination: warnings about objects that an edge can't serve
manifests       applies --manifests
other_edges     the other edges of a site
outage          a start while the API is away; readiness: the problem and the notes for probes and operators
server_process/ the gRPC server as a child process
process/        the life of the process: systemd, SIGHUP, probes, memory
logs            the root logger; errors: the exceptions
"""
