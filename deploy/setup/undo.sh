# shellcheck shell=bash
# Commands to run when setup.sh ends, for any reason. Sourced by setup.sh, not run.

declare -A undo=() # a command for each name

trap 'for one in "${undo[@]}"; do eval "$one"; done' EXIT
