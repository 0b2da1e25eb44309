#!/usr/bin/env bash
# root.sh SUITE OUT PACKAGE,...: make in OUT a Debian as its smallest installation has it, with these packages, whose apt
# has the mirrors that this machine's apt has.
set -euo pipefail
suite=$1 out=$2 include=$3
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
list=$(mktemp)
trap 'rm -f "$list"' EXIT
# shellcheck disable=SC2016  # the variables are apt's
targets() { apt-get indextargets --format "$1" 'Created-By: Packages'; }
# shellcheck disable=SC2016
mirror=$(targets '$(ORIGIN) $(RELEASE) $(REPO_URI)' | awk '$1 == "Debian" && $2 !~ /-/ {print $3; exit}')
# shellcheck disable=SC2016
security=$(targets '$(ORIGIN) $(RELEASE) $(REPO_URI)' | awk '$1 == "Debian" && $2 ~ /-security$/ {print $3; exit}')
[ -n "$mirror" ] || { echo "root.sh: apt knows no mirror of Debian" >&2; exit 1; }
{
  echo "deb [signed-by=$keyring] $mirror $suite main"
  echo "deb [signed-by=$keyring] $mirror $suite-updates main"
  [ -z "$security" ] || echo "deb [signed-by=$keyring] $security $suite-security main"
} >"$list"
mmdebstrap --quiet --mode=root --variant=minbase --include="$include" --aptopt='Acquire::Languages "none"' \
  --aptopt='APT::Install-Recommends "false"' "$suite" "$out" "$list"
# As on a machine that was installed yesterday: apt has to ask anew what there is.
rm -rf "$out"/var/lib/apt/lists/*
