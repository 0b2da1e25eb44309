#!/bin/sh
# reboot: asks the installation environment to restart the machine once the workflow has ended.
#
# Not at once: the agent first reports the success of the workflow to the server. The Template mounts the OSIE's directory for
# requests at /host (volumes: ["/run/tinkedge/requests:/host"]); the file `reboot` in it is the request.
set -u

fail() {
    echo "$2" >&2
    echo "$1" > /tinkerbell/failure-reason
    echo "$2" > /tinkerbell/failure-message
    exit 1
}

grep -q ' /host ' /proc/self/mounts ||
    fail HostNotMounted 'nothing is mounted at /host; the action needs volumes: ["/run/tinkedge/requests:/host"]'
: > /host/reboot || fail RequestFailed "cannot write /host/reboot"
echo "the machine will reboot when the workflow has ended"
