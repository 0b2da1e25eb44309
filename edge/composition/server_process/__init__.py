"""The gRPC server as a child process of `tinkedge up`, which agents reach and booting machines do not need.

supervisor   the parent's side: starts the child, watches its memory, replaces it, and takes what it reports
__main__     the child: the service `server` of the stack, with the API of the parent
core_log     the child's standard error, on which gRPC's core writes lines that strangers cause

gRPC's core expands header blocks (HPACK) before it looks at their size, so no setting bounds its memory. The kernel
does, by the limit of a process: DHCP, TFTP, HTTP and the API are in another one.
"""

from edge.composition.server_process.supervisor import ServerProcess

__all__ = ["ServerProcess"]
