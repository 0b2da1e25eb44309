#!/usr/bin/env bash
# base.sh CACHE OUT: make the small Debian 12 in OUT that the tests start each release of cloud-init in. It has all that
# cloud-init needs, but not cloud-init: its releases are laid over it. CACHE keeps the packages, for the next time.
set -euo pipefail
cache=$1 out=$2
# What cloud-init runs; what its modules call (ssh keys, sudo, names); and two ways to configure a network.
include="python3 python3-configobj python3-jinja2 python3-jsonpatch python3-jsonschema python3-netifaces python3-oauthlib
         python3-passlib python3-requests python3-serial python3-yaml
         procps iproute2 net-tools netbase openssh-client sudo lsb-release ifupdown netplan.io"

work=$(mktemp -d -t cloud-init-base.XXXXXX)
trap 'rm -rf --one-file-system -- "$work"' EXIT
mkdir -p "$cache"
# shellcheck source=../../../deploy/debian-sources.sh
. "$(dirname "$0")/../../../deploy/debian-sources.sh"
debian_sources bookworm >"$work/sources.list"
[ -s "$work/sources.list" ] || { echo "base.sh: apt knows no mirror of Debian" >&2; exit 1; }
# How this machine's apt reaches them.
apt-config dump --no-empty | grep -E '^Acquire::(https?|ftp|Retries)' >"$work/apt.conf" || true

# shellcheck disable=SC2016  # $1 in the hooks is theirs: the new root
mmdebstrap --mode=root --variant=minbase --include="$(echo $include | tr ' ' ,)" \
  --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Languages "none"' --aptopt="$work/apt.conf" \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
  --dpkgopt='path-exclude=/usr/share/locale/*' \
  --setup-hook='mkdir -p "$1/var/cache/apt/archives"' \
  --setup-hook="find '$cache' -name '*.deb' ! -name 'linux-image-*' -exec cp -t \"\$1/var/cache/apt/archives\" {} +" \
  --skip=essential/unlink \
  --customize-hook="cp -u \"\$1\"/var/cache/apt/archives/*.deb '$cache'" \
  bookworm "$work/root" "$work/sources.list"

root=$work/root
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
# Wherever the tests run, cloud-init shall find itself on a machine of metal.
printf '#!/bin/sh\necho none\nexit 1\n' >"$root/usr/bin/systemd-detect-virt"
# Nothing waits for devices here; cloud-init's netplan wants to be told that they have settled.
printf '#!/bin/sh\n' >"$root/usr/bin/udevadm"
chmod 755 "$root"/usr/bin/{systemd-detect-virt,udevadm}
# Debian 11's cloud-init was written for Python 3.9, where this name still was in two places.
echo 'import collections.abc; collections.Iterable = collections.abc.Iterable' \
  >"$root/usr/lib/python3/dist-packages/python3.9.pth"
# Nobody resolves names here, and says so at once.
rm -f "$root/etc/resolv.conf"
echo 'nameserver 127.0.0.1' >"$root/etc/resolv.conf"
echo 'localhost' >"$root/etc/hostname"
rm -rf --one-file-system -- "$out"
mv "$root" "$out"
