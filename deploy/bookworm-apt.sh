#!/usr/bin/env bash
# The OSIE and the disk images are Debian 12, whatever this host is: prints the path of an apt configuration (for
# APT_CONFIG) that knows Debian 12, of this host's own mirror where it is Debian; nothing if the host's apt knows it.
#
#   bookworm-apt.sh DIR      keeps lists and configuration in DIR
set -euo pipefail

[ $# -eq 1 ] || { echo "usage: $0 DIR" >&2; exit 2; }
suite=bookworm
keyring=/usr/share/keyrings/debian-archive-keyring.gpg

# shellcheck disable=SC2016  # the variables are apt's
if apt-get indextargets --format '$(ORIGIN) $(CODENAME) $(COMPONENT)' 'Created-By: Packages' | grep -qx "Debian $suite main"; then exit 0; fi
[ -e "$keyring" ] || { echo "bookworm-apt.sh: $keyring is missing: apt-get install debian-archive-keyring" >&2; exit 1; }
# shellcheck source=debian-sources.sh
. "$(dirname "$0")/debian-sources.sh"
sources=$(debian_sources "$suite")
[ -n "$sources" ] || { echo "bookworm-apt.sh: apt knows no Debian mirror: name one that has $suite in /etc/apt/sources.list.d" >&2; exit 1; }
mkdir -p "$1"
echo "osie: fetching the package lists of Debian 12" >&2
foreign_apt "$(cd "$1" && pwd)" "$(dpkg --print-architecture)" "$sources"
