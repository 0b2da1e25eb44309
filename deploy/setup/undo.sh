# shellcheck shell=bash
# What is to be done when setup.sh ends, however it does. Sourced, not run.

declare -A undo=() # a command for each name

trap 'for one in "${undo[@]}"; do eval "$one"; done' EXIT
