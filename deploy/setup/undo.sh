# shellcheck shell=bash
# What is to be done when setup.sh ends, however it does. Sourced, not run.

declare -A undo=() # a command for each name

# A process that was forked a moment ago, and is killed before it has become itself, runs its parent's trap: that it is
# not the parent, it can be asked.
trap '[ "$BASHPID" != $$ ] || for one in "${undo[@]}"; do eval "$one"; done' EXIT
