"""The gRPC server as a child process of `tinkedge up`. Agents need it; booting machines do not.

    supervisor   the parent's side: starts and restarts the child, watches its memory, receives its reports
    __main__     the child: the service `server` of the stack, with the API of the parent
    core_log     the child's standard error, where gRPC's core logs lines that remote hosts can cause

gRPC's core expands header blocks (HPACK) before it checks their size, so no setting of gRPC bounds its memory. The
kernel's limit for the child process does. DHCP, TFTP, HTTP and the API run in the parent and keep their memory.
"""
