#!/usr/bin/env bash
# root.sh SUITE DEB CACHE OUT [BASE]: make in OUT the smallest Debian that runs the package DEB, with DEB installed.
# SOURCE_DATE_EPOCH is the time of all files. CACHE keeps Debian's packages. BASE is a tar archive of that Debian without
# DEB: used if it exists, else created.
set -euo pipefail
umask 022 # the files are read by another user than root
suite=$1 deb=$2 cache=$3 out=$4 base=${5:-}
# Dependencies of the package without the service manager; boot programs for machines; authorities for HTTPS; IPMI.
include="python3-minimal libpython3-stdlib python3 libstdc++6 systemd-standalone-sysusers passwd ipxe ca-certificates
  ipmitool"

command -v mmdebstrap >/dev/null || { echo "image: apt-get install mmdebstrap" >&2; exit 1; }
[ "$(id -u)" = 0 ] || { echo "image: as root only, to make files of other users" >&2; exit 1; }
work=$(mktemp -d -t image-root.XXXXXX)
trap 'rm -rf --one-file-system -- "$work"' EXIT
mkdir -p "$cache"
# shellcheck source=../debian-sources.sh
. "$(dirname "$0")/../debian-sources.sh"
root=$work/root

make_debian() { # in $root, without DEB
  debian_sources "$suite" >"$work/sources.list"
  [ -s "$work/sources.list" ] || { echo "image: apt knows no mirror of Debian" >&2; exit 1; }
  # The settings by which this machine's apt reaches them.
  apt-config dump --no-empty | grep -E '^Acquire::(https?|ftp|Retries)' >"$work/apt.conf" || true

  # shellcheck disable=SC2016  # $1 in the hooks is theirs: the new root
  mmdebstrap --mode=root --variant=essential --include="$(echo $include | tr ' ' ,)" \
    --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Languages "none"' --aptopt="$work/apt.conf" \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/info/*' --dpkgopt='path-exclude=/usr/share/lintian/*' \
    --dpkgopt='path-exclude=/usr/share/misc/enterprise-numbers.txt' \
    --setup-hook='mkdir -p "$1/var/cache/apt/archives"' \
    --setup-hook="find '$cache' -name '*.deb' ! -name 'linux-image-*' -exec cp -t \"\$1/var/cache/apt/archives\" {} +" \
    --skip=essential/unlink \
    --customize-hook="cp -u \"\$1\"/var/cache/apt/archives/*.deb '$cache'" \
    "$suite" "$root" "$work/sources.list" >"$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; exit 1; }
}

if [ -n "$base" ] && [ -e "$base" ]; then
  mkdir "$root"
  tar -xp --numeric-owner -C "$root" -f "$base"
else
  make_debian
  if [ -n "$base" ]; then
    tar -c --numeric-owner -C "$root" -f "$work/base.tar" .
    mv "$work/base.tar" "$base.$$"
    mv "$base.$$" "$base"
  fi
fi
cp "$deb" "$root/tmp/tinkedge.deb"
# shellcheck disable=SC2016  # $0 is the inner shell's
unshare --mount sh -c 'mount -t proc proc "$0/proc" && exec chroot "$0" dpkg --install /tmp/tinkedge.deb' \
  "$root" >"$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; exit 1; }

# Remove files that only installations need, and files that differ between builds.
rm -rf "$root"/tmp/* "$root"/var/cache/* "$root"/var/log/* "$root"/var/lib/apt/* "$root"/var/lib/systemd/* "$root"/run/* \
  "$root"/var/lib/dpkg/*-old "$root"/etc/*- "$root"/etc/machine-id "$root"/var/cache/ldconfig/aux-cache \
  "$root"/usr/lib/x86_64-linux-gnu/gconv "$root"/usr/share/zoneinfo
echo 'nameserver 127.0.0.1' >"$root/etc/resolv.conf"
echo localhost >"$root/etc/hostname"
rm -rf --one-file-system -- "$out"
mv "$root" "$out"
