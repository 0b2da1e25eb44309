#!/usr/bin/env bash
# boot.sh SYSTEM DIRECTORY [FILE NAME]...: become the first process of a host, in namespaces of its own: lay
# DIRECTORY/disk over the Debian in SYSTEM, show it each FILE of this machine under a NAME of its own, give it what a
# container gets (systemd's CONTAINER_INTERFACE), and start systemd. It has an interface that faces machines, eth1.
set -euo pipefail
system=$1 directory=$2 root=$2/root
shift 2
mount -t overlay overlay -o "lowerdir=$system,upperdir=$directory/disk,workdir=$directory/work" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom tty; do
  touch "$root/dev/$device"
  mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir -p "$root/dev/pts" "$root/dev/shm" "$root/.old"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
while [ $# -gt 0 ]; do
  if [ -d "$1" ]; then mkdir -p "$root$2"; else mkdir -p "$root${2%/*}" && touch "$root$2"; fi
  mount --bind "$1" "$root$2"
  mount -o remount,bind,ro "$root$2"
  shift 2
done
ip link set lo up
ip link add eth1 type bridge forward_delay 0
ip address add "$ADDRESS/24" dev eth1
ip link set eth1 up
cd "$root"
pivot_root . .old
umount --lazy /.old
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --log-target=journal --show-status=0
