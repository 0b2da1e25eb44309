#!/usr/bin/env bash
# root.sh SUITE OUT PACKAGE,...: make in OUT a Debian as its smallest installation has it, with these packages, whose apt
# has the mirrors that this machine's apt has.
set -euo pipefail
suite=$1 out=$2 include=$3
list=$(mktemp)
trap 'rm -f "$list"' EXIT
# shellcheck source=../../deploy/debian-sources.sh
. "$(dirname "$0")/../../deploy/debian-sources.sh"
debian_sources "$suite" >"$list"
[ -s "$list" ] || { echo "root.sh: apt knows no mirror of Debian" >&2; exit 1; }
mmdebstrap --quiet --mode=root --variant=minbase --include="$include" --aptopt='Acquire::Languages "none"' \
  --aptopt='APT::Install-Recommends "false"' "$suite" "$out" "$list"
# As on a machine that was installed yesterday: apt has to ask anew what there is.
rm -rf "$out"/var/lib/apt/lists/*
