#!/bin/bash
# A disk image of a few megabytes, to test that a disk is written and boots: Debian's cloud kernel and a busybox initrd. It prints
# "tinkedge: booted from disk" on the serial line, gets an address by DHCP and prints its instance id from the metadata service.
set -euo pipefail

packages=(busybox-static cpio dosfstools gdisk mtools syslinux syslinux-common systemd-boot-efi zstd)
here=$(dirname -- "$(readlink -f -- "$0")")
# shellcheck source=common.sh
. "$here/common.sh"

usage() {
    cat <<EOF
Usage: ${0##*/} [--cache DIR] OUT
Builds the tiny disk image. OUT ends in .raw.gz (or .raw.zst, .raw); OUT.sha256 is written beside it.
  --cache DIR   keep the downloaded kernel package in DIR, and use the one that is there
EOF
}

cache='' out=''
while (($#)); do
    case $1 in
        --cache) cache=${2:?--cache needs a directory} && shift 2 ;;
        -h | --help) usage && exit 0 ;;
        -*) die "unknown option $1 (see --help)" ;;
        *) [[ -z $out ]] || die "one OUT only, got '$out' and '$1'" && out=$1 && shift ;;
    esac
done
[[ -n $out ]] || { usage >&2 && exit 2; }
need_packages "${packages[@]}"
check_out "$out"

work=$(mktemp -d -t tinkedge-image.XXXXXX)
trap 'rm -rf --one-file-system -- "$work" "$out.tmp" "$out.sha256.tmp"' EXIT
cache=${cache:-$work/debs}
mkdir -p "$cache" "$work/kernel"
cache=$(readlink -f -- "$cache")

unpack_kernel linux-image-cloud-amd64 "$cache" "$work/kernel"
initrd "$work/initrd" "$work/kernel" "$here/tiny/init" virtio_pci virtio_net
esp "$work/esp" 24 "$work/kernel/vmlinuz" "$work/initrd" "console=tty0 console=ttyS0,115200 quiet panic=10"
disk "$work/disk.raw" "$work/esp"
say "compressing"
publish "$work/disk.raw" "$out"
