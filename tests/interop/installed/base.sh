#!/usr/bin/env bash
# base.sh SUITE CACHE OUT: make in OUT the small Debian that the tests install tinkedge in: what a server with a minimal
# installation has (systemd, Python), what the package depends on, and what its user would call. CACHE keeps the
# packages, for the next time.
set -euo pipefail
suite=$1 cache=$2 out=$3
# What a minimal Debian server has; what the package recommends; kubectl's and the tests' own needs.
include="systemd systemd-sysv dbus python3 python3-venv ca-certificates iproute2 procps curl openssl ipxe"

work=$(mktemp -d -t installed-base.XXXXXX)
trap 'rm -rf --one-file-system -- "$work"' EXIT
mkdir -p "$cache" "$(dirname "$out")"
# shellcheck source=../../../deploy/debian-sources.sh
. "$(dirname "$0")/../../../deploy/debian-sources.sh"
debian_sources "$suite" >"$work/sources.list"
[ -s "$work/sources.list" ] || { echo "base.sh: apt knows no mirror of Debian" >&2; exit 1; }
# How this machine's apt reaches them.
apt-config dump --no-empty | grep -E '^Acquire::(https?|ftp|Retries)' >"$work/apt.conf" || true

# shellcheck disable=SC2016  # $1 in the hooks is theirs: the new root
mmdebstrap --mode=root --variant=minbase --include="$(echo $include | tr ' ' ,)" \
  --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Languages "none"' --aptopt="$work/apt.conf" \
  --dpkgopt='path-exclude=/usr/share/locale/*' \
  --setup-hook='mkdir -p "$1/var/cache/apt/archives"' \
  --setup-hook="find '$cache' -name '*.deb' ! -name 'linux-image-*' -exec cp -t \"\$1/var/cache/apt/archives\" {} +" \
  --skip=essential/unlink \
  --customize-hook="cp -u \"\$1\"/var/cache/apt/archives/*.deb '$cache'" \
  "$suite" "$work/root" "$work/sources.list"

root=$work/root
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/* "$root"/usr/share/man/??
# Nobody resolves names here, and says so at once.
rm -f "$root/etc/resolv.conf"
echo 'nameserver 127.0.0.1' >"$root/etc/resolv.conf"
echo 'server' >"$root/etc/hostname"
# Of a service manager's start, what has nothing to do here: devices, consoles, disks, the network that tests make.
for unit in systemd-udevd systemd-udev-trigger systemd-udevd-control.socket systemd-udevd-kernel.socket getty.target \
  console-getty systemd-logind systemd-networkd systemd-resolved systemd-timesyncd systemd-modules-load \
  systemd-update-utmp systemd-update-utmp-runlevel systemd-random-seed fstrim.timer apt-daily.timer \
  apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap systemd-remount-fs dev-hugepages.mount \
  dev-mqueue.mount sys-kernel-debug.mount sys-kernel-tracing.mount sys-fs-fuse-connections.mount systemd-sysctl \
  systemd-pcrphase systemd-pcrphase-sysinit systemd-boot-system-token; do
  case $unit in *.*) ;; *) unit=$unit.service ;; esac
  ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
rm -rf --one-file-system -- "$out"
mv "$root" "$out"
