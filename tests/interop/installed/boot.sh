#!/usr/bin/env bash
# boot.sh SYSTEM DIRECTORY: become the first process of a host, in namespaces of its own: lay DIRECTORY/disk over the
# Debian in SYSTEM, give it what a container gets (systemd's CONTAINER_INTERFACE), and start systemd.
set -euo pipefail
system=$1 directory=$2 root=$2/root
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
cd "$root"
pivot_root . .old
umount --lazy /.old
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --log-target=console --show-status=0
