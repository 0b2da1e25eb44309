# shellcheck shell=bash
# Functions of build-tiny.sh and build-cloud.sh: Debian's kernel, a busybox initrd, an EFI system partition that boots
# on both firmwares, and the partition table around it. Nothing is mounted and no loop device is used, so the recipes run
# on a host whose kernel knows neither VFAT nor loop. Sourced, not run.
#
# The boot paths on the finished disk:
#   BIOS  MBR code (gptmbr.bin) -> partition marked "legacy BIOS bootable" -> ldlinux.sys (syslinux) -> /vmlinuz, /initrd
#   UEFI  EFI/BOOT/BOOTX64.EFI (systemd-boot) -> loader/entries/tinkedge.conf -> /vmlinuz, /initrd

umask 022
PATH=$PATH:/usr/sbin:/sbin # for sgdisk and mkfs.fat, which not every user has on the path
readonly SUITE=bookworm
readonly MIB=1048576
readonly ESP_START_MIB=1

say() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }

die() {
    printf '%s: error: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# need_packages NAME...: check that every Debian package is installed; the error names all missing ones.
need_packages() {
    local name missing=()
    command -v dpkg-query >/dev/null || die "this recipe needs a Debian $SUITE host (dpkg-query was not found)"
    for name in "$@"; do
        [[ $(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null) == installed ]] || missing+=("$name")
    done
    ((${#missing[@]} == 0)) || die "missing Debian packages: ${missing[*]} (apt-get install --no-install-recommends ${missing[*]})"
}

# check_out OUT: the suffix of OUT selects the compression; its directory must exist.
check_out() {
    case $1 in
        *.raw | *.raw.gz | *.raw.zst) ;;
        *) die "OUT must end in .raw, .raw.gz or .raw.zst, not '$1'" ;;
    esac
    [[ -d $(dirname -- "$1") ]] || die "OUT: the directory '$(dirname -- "$1")' does not exist"
}

# shellcheck source=../kernel.sh
. "$(dirname -- "${BASH_SOURCE[0]}")/../kernel.sh"

# unpack_kernel PACKAGE CACHE DIR: DIR/vmlinuz, DIR/version and DIR/lib/modules/VERSION with its dependency table, of the
# newest kernel that PACKAGE depends on. CACHE keeps the package.
unpack_kernel() {
    local name=$1 cache=$2 dir=$3 package tree version
    package=$(kernel_image "$name")
    [[ -n $package ]] || die "apt knows no kernel package $name: run 'apt-get update', with Debian $SUITE main among its sources"
    tree=$(kernel_tree "$package" "$cache" "$dir/trees")
    mkdir -p "$dir/lib"
    # Others read the same tree: never write to its files.
    cp -al "$tree/lib/modules" "$dir/lib/" 2>/dev/null || { rm -rf "$dir/lib/modules" && cp -a "$tree/lib/modules" "$dir/lib/"; }
    version=$(ls "$dir/lib/modules")
    cp "$tree/boot/vmlinuz-$version" "$dir/vmlinuz"
    printf '%s\n' "$version" >"$dir/version"
    busybox depmod -b "$dir" "$version"
}

# initrd OUT KERNEL_DIR INIT MODULE...: a gzip'd cpio of busybox, the program INIT as /init, and the modules with their dependencies. A
# module may be built into the kernel. One that the kernel lacks is an error, unless a ? follows its name.
initrd() {
    local out=$1 kernel=$2 init=$3 version root module path paths optional
    shift 3
    version=$(<"$kernel/version")
    root=$(mktemp -d -p "$kernel" initrd.XXXX)
    mkdir -p "$root"/{bin,dev,etc,proc,run,sys,sysroot} "$root/lib/modules/$version"
    install -m 755 /bin/busybox "$root/bin/busybox"
    for path in sh modprobe; do ln -s busybox "$root/bin/$path"; done
    install -m 755 "$init" "$root/init"
    for module in "$@"; do
        optional=''
        [[ $module != *\? ]] || optional=yes
        module=${module%\?}
        if grep -q "/$module\.ko$" "$kernel/lib/modules/$version/modules.builtin"; then continue; fi
        paths=$(sed -n "s|^\(.*/$module\.ko\):|\1|p" "$kernel/lib/modules/$version/modules.dep")
        [[ -n $paths || -n $optional ]] || die "kernel $version has no module $module"
        for path in $paths; do
            install -D -m 644 "$kernel/lib/modules/$version/$path" "$root/lib/modules/$version/$path"
        done
    done
    busybox depmod -b "$root" "$version"
    (cd "$root" && find . -mindepth 1 | LC_ALL=C sort | cpio --quiet -o -H newc -R 0:0) | gzip -n -9 >"$out"
    rm -r -- "$root"
}

# esp OUT SIZE_MIB VMLINUZ INITRD CMDLINE: the EFI system partition as a file, with the loaders' configuration for both firmwares.
# FAT16 below 40 MiB (FAT32 needs 65525 clusters), FAT32 from there on, which the UEFI specification prefers for fixed disks.
esp() {
    local out=$1 size=$2 vmlinuz=$3 initrd=$4 cmdline=$5 fat=16 conf
    ((size < 40)) || fat=32
    conf=$(mktemp -d -p "$(dirname -- "$out")" esp.XXXX)
    cat >"$conf/syslinux.cfg" <<EOF
DEFAULT tinkedge
PROMPT 0
LABEL tinkedge
  LINUX /vmlinuz
  INITRD /initrd
  APPEND $cmdline
EOF
    printf 'timeout 0\ndefault tinkedge.conf\n' >"$conf/loader.conf"
    printf 'title tinkedge\nlinux /vmlinuz\ninitrd /initrd\noptions %s\n' "$cmdline" >"$conf/tinkedge.conf"
    rm -f -- "$out"
    truncate -s "${size}M" "$out"
    mkfs.fat -F "$fat" -n TINKEDGE -h $((ESP_START_MIB * 2048)) "$out" >/dev/null
    mmd -i "$out" ::/EFI ::/EFI/BOOT ::/loader ::/loader/entries ::/syslinux
    mcopy -i "$out" "$vmlinuz" ::/vmlinuz
    mcopy -i "$out" "$initrd" ::/initrd
    mcopy -i "$out" /usr/lib/systemd/boot/efi/systemd-bootx64.efi ::/EFI/BOOT/BOOTX64.EFI
    mcopy -i "$out" "$conf/loader.conf" ::/loader/loader.conf
    mcopy -i "$out" "$conf/tinkedge.conf" ::/loader/entries/tinkedge.conf
    mcopy -i "$out" "$conf/syslinux.cfg" ::/syslinux/syslinux.cfg
    rm -r -- "$conf"
}

size_mib() { echo $((($(stat -c %s "$1") + MIB - 1) / MIB)); }

# disk OUT ESP [ROOT]: the whole disk: GPT, the ESP, after it the root filesystem if there is one, and the boot code for BIOS.
disk() {
    local out=$1 esp=$2 root=${3:-} esp_mib root_start_mib total_mib
    esp_mib=$(size_mib "$esp")
    root_start_mib=$((ESP_START_MIB + esp_mib))
    total_mib=$((root_start_mib + 1))
    local parts=(-n "1:${ESP_START_MIB}M:+${esp_mib}M" -t 1:ef00 -c 1:esp -A 1:set:2)
    if [[ -n $root ]]; then
        total_mib=$((total_mib + $(size_mib "$root")))
        parts+=(-n "2:${root_start_mib}M:+$(size_mib "$root")M" -t 2:8304 -c 2:root)
    fi
    rm -f -- "$out"
    truncate -s "${total_mib}M" "$out"
    sgdisk "${parts[@]}" "$out" >/dev/null
    dd if="$esp" of="$out" bs=1M seek="$ESP_START_MIB" conv=notrunc,sparse status=none
    if [[ -n $root ]]; then dd if="$root" of="$out" bs=1M seek="$root_start_mib" conv=notrunc,sparse status=none; fi
    syslinux -t $((ESP_START_MIB * MIB)) -d /syslinux --install "$out"
    # 440 bytes: the rest of the first sector is the protective partition table.
    dd if=/usr/lib/syslinux/mbr/gptmbr.bin of="$out" bs=440 count=1 conv=notrunc status=none
}

# publish RAW OUT: compress RAW by the suffix of OUT, and replace OUT and OUT.sha256 atomically.
publish() {
    local raw=$1 out=$2
    case $out in
        *.raw.gz) gzip -n -6 <"$raw" >"$out.tmp" ;;
        # Level 9 takes four times as long and saves a tenth.
        *.raw.zst) zstd -q -T0 -3 --long=24 -f -o "$out.tmp" -- "$raw" ;;
        *) cp --sparse=always -- "$raw" "$out.tmp" ;;
    esac
    printf '%s  %s\n' "$(sha256sum <"$out.tmp" | cut -d ' ' -f 1)" "$(basename -- "$out")" >"$out.sha256.tmp"
    mv -f -- "$out.tmp" "$out"
    mv -f -- "$out.sha256.tmp" "$out.sha256"
    say "$out: $(stat -c %s "$out") bytes, raw $(stat -c %s "$raw") bytes"
}
