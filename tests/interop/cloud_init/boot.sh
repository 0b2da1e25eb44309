#!/usr/bin/env bash
# boot.sh DISK RELEASE BASE COMMAND...: run each COMMAND, one after the other, as the boot of a machine does it. To be
# run in namespaces of its own (mount, UTS, PID), so that nothing of it is left when it ends; what it wrote is in DISK:
#   DISK/changes   what differs from RELEASE and BASE (directories with cloud-init, and with the system around it)
#   DISK/cmdline   the kernel's command line
#   DISK/dmi       what the mainboard says of itself, in files as of /sys/class/dmi/id, if not what is said below
#   DISK/report    written at the end: the hostname, and what of /run is worth keeping
set -euo pipefail
disk=$1 release=$2 base=$3
shift 3
root=$disk/root
mkdir -p "$disk"/{changes,work,root,report}
mount -t overlay -o "lowerdir=$release:$base,upperdir=$disk/changes,workdir=$disk/work" overlay "$root"
mount -t proc proc "$root/proc"
mount --bind "$disk/cmdline" "$root/proc/cmdline"
mount -t tmpfs tmpfs "$root/run"
# The network's devices, and a mainboard that is nobody's cloud; whatever this host's is called.
mount -t tmpfs tmpfs "$root/sys"
mkdir -p "$root"/sys/{kernel,devices,class/{net,dmi/id},.all}
mount -t sysfs sysfs "$root/sys/.all"
mount --bind "$root/sys/.all/devices" "$root/sys/devices"
mount --bind "$root/sys/.all/class/net" "$root/sys/class/net"
cd "$root/sys/class/dmi/id"
echo Supermicro >sys_vendor
echo SYS-5019S >product_name
echo 0123456789 | tee product_serial >chassis_serial
echo 00000000-0000-0000-0000-3cecef123456 >product_uuid
[ ! -d "$disk/dmi" ] || cp "$disk"/dmi/* .
cd /
mount -t tmpfs tmpfs "$root/dev"
for device in null:3 zero:5 full:7 random:8 urandom:9; do mknod -m 666 "$root/dev/${device%:*}" c 1 "${device#*:}"; done
ln -s /proc/self/fd "$root/dev/fd"
hostname -F "$root/etc/hostname" # as systemd does, before anything else
status=0
for command; do
  # shellcheck disable=SC2086  # words
  chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 $command || status=$?
done
hostname >"$disk/report/hostname"
for file in "$root"/run/cloud-init/{result.json,status.json,cloud.cfg,ds-identify.log}; do
  [ ! -e "$file" ] || cp -L "$file" "$disk/report/"
done
exit "$status"
