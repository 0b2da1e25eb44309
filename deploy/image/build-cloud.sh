#!/bin/bash
# A disk image of a real Debian with systemd and cloud-init, for machines that a Workflow installs. On its first boot it grows to the size of its
# disk, gets an address by DHCP, and cloud-init fetches its user-data: from the metadata service (EC2's tree) at --metadata-url, or
# with --server from the URL that a Workflow has written into /etc/cloud/cloud.cfg.d.
set -euo pipefail

packages=(busybox-static cpio dosfstools e2fsprogs gdisk mmdebstrap mtools syslinux syslinux-common systemd-boot-efi zstd)
# Packages beside Debian's minbase; cloud-init depends on Python. Without usr-is-merged, apt would install usrmerge and all of
# Perl, although /usr is already merged.
include=(cloud-init iproute2 kmod netbase systemd-resolved systemd-sysv udev usr-is-merged)
# Units that do nothing on such a machine but take time on each boot. "systemctl unmask" restores them.
masked=(
    apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service
    networking.service proc-sys-fs-binfmt_misc.automount systemd-binfmt.service systemd-pstore.service
    getty@tty1.service systemd-logind.service cloud-init-hotplugd.socket
)
# With --server: with ssh, a console login, a synchronised clock and all units of a plain Debian.
server_include=(ca-certificates dbus iputils-ping less libpam-systemd openssh-server sudo systemd-timesyncd vim-tiny)
# The drivers in the initrd, beside those for the disks of every hypervisor: SATA, VMD (Intel's NVMe), RAID and SAS controllers,
# eMMC, USB, Hyper-V, VMware. A "?": the cloud kernel lacks it.
disks=(virtio_pci virtio_blk virtio_scsi sd_mod nvme ata_piix ext4)
server_disks=(crc32c_generic? ahci? vmd? megaraid_sas? mpt3sas? mptspi? mptsas? hpsa? smartpqi? aacraid? arcmsr? isci? mmc_block? sdhci-pci?
    sdhci-acpi? uas? usb-storage? xhci-pci? ehci-pci? hv_storvsc? vmw_pvscsi? xen-blkfront?)
# Modules that a server does not need: two thirds of the bytes of a kernel for real machines.
left_out=(sound drivers/{gpu,media,staging,iio,comedi,isdn,gnss,greybus,soundwire,pcmcia,bluetooth,accel} drivers/net/{wireless,can,hamradio}
    drivers/input/joystick drivers/infiniband/ulp net/{bluetooth,mac80211,wireless,can,nfc,ax25,ieee802154})
root_free_mib=32
here=$(dirname -- "$(readlink -f -- "$0")")
# shellcheck source=common.sh
. "$here/common.sh"
# shellcheck source=../debian-sources.sh
. "$here/../debian-sources.sh"

usage() {
    cat <<EOF
Usage: ${0##*/} [--cache DIR] [--kernel PACKAGE] [--metadata-url URL] [--dual-stack] OUT
       ${0##*/} [--cache DIR] [--kernel PACKAGE] --server OUT
Builds the Debian image with cloud-init (as root). OUT ends in .raw.gz, .raw.zst or .raw; OUT.sha256 is written beside it.
  --cache DIR          keep the downloaded packages in DIR, and use those that are there
  --metadata-url URL   where cloud-init finds the metadata service (default: $metadata_url);
                       with an IPv6 address, the image takes its own by DHCPv6
  --dual-stack         the image takes an address by DHCPv6 beside the one by DHCP
  --kernel PACKAGE     Debian's kernel package (default: $kernel_package, for virtual machines;
                       linux-image-amd64 has the drivers of real hardware)
  --server             for real machines: with an SSH server, sudo and the time of day; cloud-init asks where a
                       Workflow has written (NoCloud in /etc/cloud/cloud.cfg.d), and no other place
EOF
}

# apt_options: how the host's apt reaches its mirror (proxies, certificates, time limits), for the apt that mmdebstrap configures.
apt_options() { apt-config dump --no-empty | grep -E '^Acquire::(https?|ftp|Retries)' || true; }

metadata_url=http://172.31.77.1:7080 cache='' out='' dual_stack='' server='' kernel_package=linux-image-cloud-amd64 asked=''
while (($#)); do
    case $1 in
        --cache) cache=${2:?--cache needs a directory} && shift 2 ;;
        --metadata-url) metadata_url=${2:?--metadata-url needs a URL} && asked=$1 && shift 2 ;;
        --dual-stack) dual_stack=yes && asked=$1 && shift ;;
        --kernel) kernel_package=${2:?--kernel needs a package} && shift 2 ;;
        --server) server=yes && shift ;;
        -h | --help) usage && exit 0 ;;
        -*) die "unknown option $1 (see --help)" ;;
        *) [[ -z $out ]] || die "one OUT only, got '$out' and '$1'" && out=$1 && shift ;;
    esac
done
[[ -n $out ]] || { usage >&2 && exit 2; }
[[ $metadata_url =~ ^https?://[][A-Za-z0-9.:_-]+(/[A-Za-z0-9._/-]*)?$ ]] || die "--metadata-url: '$metadata_url' is no http URL"
[[ -z $server || -z $asked ]] || die "--server and $asked: a server's image gets its metadata URL from a Workflow; leave one of them out"
[[ $EUID == 0 ]] || die "must run as root: files in the image belong to many users"
need_packages "${packages[@]}"
check_out "$out"

work=$(mktemp -d -t tinkedge-image.XXXXXX)
trap 'rm -rf --one-file-system -- "$work" "$out.tmp" "$out.sha256.tmp"' EXIT
cache=${cache:-$work/debs}
mkdir -p "$cache" "$work/kernel"
cache=$(readlink -f -- "$cache")
root=$work/root

debian_sources "$SUITE" >"$work/sources.list"
grep -q " $SUITE main$" "$work/sources.list" || die "apt has no index of Debian $SUITE main: run 'apt-get update', with Debian $SUITE main among its sources"
apt_options >"$work/apt.conf"
unpack_kernel "$kernel_package" "$cache" "$work/kernel"
if [[ -n $server ]]; then
    include+=("${server_include[@]}") masked=() disks+=("${server_disks[@]}") root_free_mib=64
fi

say "installing Debian $SUITE with cloud-init"
# shellcheck disable=SC2016  # $1 in the hooks is theirs: the new root
mmdebstrap --mode=root --variant=minbase --include="$(IFS=, && echo "${include[*]}")" \
    --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
    --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Languages "none"' --aptopt="$work/apt.conf" \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/info/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/i18n/locales/*' \
    --setup-hook="$(lists_hook)" --setup-hook='mkdir -p "$1/var/cache/apt/archives"' \
    --setup-hook="find '$cache' -name '*.deb' ! -name 'linux-image-*' -exec cp -t \"\$1/var/cache/apt/archives\" {} +" \
    --skip=essential/unlink \
    --customize-hook="cp -u \"\$1\"/var/cache/apt/archives/*.deb '$cache'" \
    "$SUITE" "$root" "$work/sources.list" >"$work/mmdebstrap.log" 2>&1 || {
    tail -n 30 "$work/mmdebstrap.log" >&2
    die "mmdebstrap failed (its last lines are above)"
}

say "configuring"
version=$(<"$work/kernel/version")
# Not with the modes and owners of the checkout, which depend on the umask.
cp -r --no-preserve=mode,ownership,timestamps "$here/cloud/rootfs/." "$root/"
# If the metadata service has an IPv6 address, the machine needs one, too, and may have only that.
[[ $metadata_url != *://\[* ]] || cp --no-preserve=mode,ownership,timestamps "$here/cloud/ipv6/20-wired.network" "$root/etc/systemd/network/"
[[ -z $dual_stack ]] || cp --no-preserve=mode,ownership,timestamps "$here/cloud/dual-stack/20-wired.network" "$root/etc/systemd/network/"
sed -i "s|@METADATA_URL@|$metadata_url|" "$root/etc/cloud/cloud.cfg.d/90-tinkedge-ec2.cfg"
if [[ -n $server ]]; then
    # 90_tinkedge.cfg, written later, has the URL of the metadata: no file here may override it.
    rm "$root/etc/cloud/cloud.cfg.d/90-tinkedge-ec2.cfg" "$root/etc/cloud/ds-identify.cfg"
    cp -r --no-preserve=mode,ownership,timestamps "$here/cloud/server/." "$root/"
    # Each machine generates its own.
    rm -f "$root"/etc/ssh/ssh_host_*
fi
rm -f "$root/etc/apt/apt.conf.d/99mmdebstrap" "$root/etc/apt/sources.list.d/"*
# The installed system updates itself from the mirror that this host uses.
cp --no-preserve=mode,ownership "$work/sources.list" "$root/etc/apt/sources.list"
mkdir -p "$root/usr/lib/modules"
cp -r "$work/kernel/lib/modules/$version" "$root/usr/lib/modules/"
[[ -z $server ]] || (cd "$root/usr/lib/modules/$version/kernel" && rm -rf "${left_out[@]}")
# Run the image's depmod: udev reads only the binary indexes, which busybox does not write.
chroot "$root" depmod "$version"
chroot "$root" systemctl --quiet enable systemd-networkd.service
((${#masked[@]} == 0)) || chroot "$root" systemctl --quiet mask "${masked[@]}"
: >"$root/etc/machine-id"
ln -sfn ../run/systemd/resolve/stub-resolv.conf "$root/etc/resolv.conf"
echo localhost >"$root/etc/hostname"
printf '127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n' >"$root/etc/hosts"
rm -rf "$root"/var/log/{apt,dpkg.log,bootstrap.log,alternatives.log} "$root"/var/cache/debconf/*-old "$root"/var/lib/dpkg/*-old
# Newer than /usr, so that systemd skips the units that update /etc and /var after an upgrade of /usr.
touch "$root/etc/.updated" "$root/var/.updated"

say "making the root filesystem"
mib=$(($(du -sm "$root" | cut -f 1) * 21 / 20 + root_free_mib))
truncate -s "${mib}M" "$work/root.ext4"
# Block size and inodes for a large filesystem, because it will grow; mke2fs would choose 1 KiB blocks for this size.
mke2fs -q -t ext4 -T default -b 4096 -L tinkedge-root -m 1 -J size=8 -d "$root" "$work/root.ext4"
initrd "$work/initrd" "$work/kernel" "$here/cloud/init" "${disks[@]}"
esp "$work/esp" 40 "$work/kernel/vmlinuz" "$work/initrd" "root=LABEL=tinkedge-root rw console=tty0 console=ttyS0,115200 quiet"
disk "$work/disk.raw" "$work/esp" "$work/root.ext4"
say "compressing"
publish "$work/disk.raw" "$out"
