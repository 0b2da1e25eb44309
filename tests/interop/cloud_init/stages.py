"""Runs inside a machine, with the Python modules of its cloud-init: `stages.py ARGUMENTS...`, the stages of a boot.

Each of ARGUMENTS is the arguments of the program `cloud-init`, in one word (`modules,--mode=final`). Every stage is a
process of its own, as in a real boot, but comes from one that has loaded the modules already: that takes longer than
most stages do. Ends with the status of the last stage that failed.
"""

import os
import sys

from cloudinit.cmd import main


def stage(arguments):
    sys.argv[:] = ["/usr/bin/cloud-init", *arguments.split(",")]
    try:
        # Newer ones give a status, older ones None.
        return main.main() or 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)


status = 0
for arguments in sys.argv[1:]:
    child = os.fork()
    if not child:
        sys.exit(stage(arguments))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or status
sys.exit(status)
