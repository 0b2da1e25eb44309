#!/usr/bin/env bash
# root.sh SUITE DEB CACHE OUT: make in OUT the smallest Debian that runs the package DEB. SOURCE_DATE_EPOCH is the time of
# what is made; CACHE keeps Debian's packages for the next time.
set -euo pipefail
suite=$1 deb=$2 cache=$3 out=$4
# What the package depends on and an image has no service manager for; boot programs for machines; authorities for HTTPS.
include="python3-minimal libpython3-stdlib python3 libstdc++6 systemd-standalone-sysusers passwd ipxe ca-certificates"

command -v mmdebstrap >/dev/null || { echo "image: apt-get install mmdebstrap" >&2; exit 1; }
[ "$(id -u)" = 0 ] || { echo "image: as root only, to make files of other users" >&2; exit 1; }
work=$(mktemp -d -t image-root.XXXXXX)
trap 'rm -rf --one-file-system -- "$work"' EXIT
mkdir -p "$cache"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
# shellcheck disable=SC2016  # the variables are apt's
apt-get indextargets --format '$(ORIGIN) $(CODENAME) $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
  awk -v keyring="$keyring" -v suite="$suite" '$1 == "Debian" && $5 == "main" && $2 ~ "^" suite "(-updates|-security)?$" {
    print "deb [signed-by=" keyring "] " $3 " " $4 " main" }' | sort -u >"$work/sources.list"
[ -s "$work/sources.list" ] || { echo "image: apt knows no mirror of Debian $suite" >&2; exit 1; }
apt-config dump --no-empty | grep -E '^Acquire::(https?|ftp|Retries)' >"$work/apt.conf" || true

# shellcheck disable=SC2016  # $1 in the hooks is theirs: the new root
mmdebstrap --mode=root --variant=essential --include="$(echo $include | tr ' ' ,)" \
  --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Languages "none"' --aptopt="$work/apt.conf" \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
  --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
  --dpkgopt='path-exclude=/usr/share/info/*' --dpkgopt='path-exclude=/usr/share/lintian/*' \
  --setup-hook='mkdir -p "$1/var/cache/apt/archives"' \
  --setup-hook="find '$cache' -name '*.deb' ! -name 'linux-image-*' -exec cp -t \"\$1/var/cache/apt/archives\" {} +" \
  --skip=essential/unlink \
  --customize-hook="cp '$deb' \"\$1/tmp/tinkedge.deb\"" \
  --customize-hook='chroot "$1" dpkg --install /tmp/tinkedge.deb' \
  --customize-hook="cp -u \"\$1\"/var/cache/apt/archives/*.deb '$cache'" \
  "$suite" "$work/root" "$work/sources.list" >"$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; exit 1; }

root=$work/root
# What only installations need, and what differs from one to the next.
rm -rf "$root"/tmp/* "$root"/var/cache/* "$root"/var/log/* "$root"/var/lib/apt/* "$root"/var/lib/systemd/* "$root"/run/* \
  "$root"/var/lib/dpkg/*-old "$root"/etc/*- "$root"/etc/machine-id "$root"/var/cache/ldconfig/aux-cache \
  "$root"/usr/lib/x86_64-linux-gnu/gconv "$root"/usr/share/zoneinfo
echo 'nameserver 127.0.0.1' >"$root/etc/resolv.conf"
echo localhost >"$root/etc/hostname"
rm -rf --one-file-system -- "$out"
mv "$root" "$out"
