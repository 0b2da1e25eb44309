#!/usr/bin/env bash
# Builds the example action images as OCI layouts, one per image, from programs that this Debian system has:
# busybox-static, zstd and coreutils. No network, no daemon, no base image.
#
#   build.sh OUT_DIR [ARCH]    makes OUT_DIR/{image2disk,inspect,reboot,writefile}, each with the tag 1
#
# For another processor (ARCH arm64 or amd64) the same programs are those of Debian's packages for it, by mmdebstrap and
# this host's mirror; none of them is run here.
# Needs: umoci, busybox-static, zstd (Debian packages of these names). push.sh brings the result to a registry.
set -euo pipefail

[ $# -ge 1 ] && [ $# -le 2 ] || { echo "usage: $0 OUT_DIR [ARCH]" >&2; exit 2; }
out=$1
own=$(dpkg --print-architecture)
arch=${2:-$own}
case $arch in
    amd64) machine=x86_64 loader=lib64/ld-linux-x86-64.so.2 ;;
    arm64) machine=aarch64 loader=lib/ld-linux-aarch64.so.1 ;;
    *) [ "$arch" = "$own" ] || { echo "$0: $arch is neither amd64 nor arm64" >&2; exit 2; } ;;
esac
here=$(cd "$(dirname "$0")" && pwd)
for program in umoci busybox zstd ldd; do
    command -v "$program" >/dev/null || { echo "$0: $program is not installed (apt-get install umoci busybox-static zstd)" >&2; exit 1; }
done
busybox=$(command -v busybox)
# `busybox` without -static is a dynamic program, which would find no libraries in the image.
! ldd "$busybox" >/dev/null 2>&1 || { echo "$0: $busybox is not static; install busybox-static" >&2; exit 1; }

mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

applets=$("$busybox" --list)
if [ "$arch" != "$own" ]; then
    # shellcheck source=../debian-sources.sh
    . "$here/../debian-sources.sh"
    command -v mmdebstrap >/dev/null || { echo "$0: mmdebstrap is not installed" >&2; exit 1; }
    suite=bookworm
    mirrors=$(debian_sources "$suite")
    [ -n "$mirrors" ] || { echo "$0: apt knows no Debian $suite mirror" >&2; exit 1; }
    foreign=$work/foreign
    echo "$mirrors" | mmdebstrap --quiet --mode=root --variant=extract --include=busybox-static,zstd,coreutils \
        --architectures="$arch" --skip=check/qemu --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
        --aptopt='Acquire::Languages "none"' --aptopt='APT::Install-Recommends "false"' "$suite" "$foreign" - >&2
    busybox=$foreign/usr/bin/busybox
    [ -e "$busybox" ] || busybox=$foreign/bin/busybox
fi

# The root file system that all have in common: busybox under all its names.
root=$work/root
mkdir -p "$root/bin" "$root/etc" "$root/tmp" "$root/proc" "$root/sys" "$root/dev" "$root/tinkerbell"
chmod 1777 "$root/tmp"
cp "$busybox" "$root/bin/busybox"
for name in $applets; do
    [ "$name" = busybox ] || ln -s busybox "$root/bin/$name"
done
printf 'root:x:0:0:root:/:/bin/sh\n' > "$root/etc/passwd"
printf 'root:x:0:\n' > "$root/etc/group"

# A program of this system with the libraries it is linked to, at the paths where it looks for them.
add_program() {
    root_of_image=$1
    if [ "$arch" != "$own" ]; then
        add_foreign_program "$@"
        return
    fi
    program=$(command -v "$2")
    rm -f "$root_of_image/bin/$2"
    cp -L "$program" "$root_of_image/bin/$2"
    ldd "$program" | grep -o '/[^ ]*' | while read -r library; do
        mkdir -p "$root_of_image$(dirname "$library")"
        cp -L "$library" "$root_of_image$library"
    done
}

# The same of another processor's: ldd would run it. All libraries that came with these few packages are taken.
add_foreign_program() {
    rm -f "$1/bin/$2"
    cp -L "$foreign/usr/bin/$2" "$1/bin/$2"
    mkdir -p "$1/$(dirname "$loader")" "$1/lib/$machine-linux-gnu"
    cp -L "$foreign/$loader" "$1/$loader"
    for library in c m z lzma lz4 zstd gcc_s stdc++; do
        for file in "$foreign/usr/lib/$machine-linux-gnu/lib$library".so.[0-9]; do
            [ ! -e "$file" ] || cp -L "$file" "$1/lib/$machine-linux-gnu/"
        done
    done
}

build() {
    name=$1
    layout=$out/$name
    rm -rf "$layout" "${work:?}/${name:?}"
    cp -a "$root" "$work/$name"
    install -m 0755 "$here/$name/$name.sh" "$work/$name/bin/$name"
    if [ "$name" = image2disk ]; then
        add_program "$work/$name" zstd
        # busybox' own tee copies 1 KiB at a time: half a minute more for an image of 100 MB on a slow machine.
        # Scripts call this one by its path.
        add_program "$work/$name" tee
    fi
    umoci init --layout "$layout"
    umoci new --image "$layout:1"
    umoci insert --image "$layout:1" "$work/$name" / >/dev/null
    umoci config --image "$layout:1" --architecture "$arch" --config.entrypoint "/bin/$name" --config.env PATH=/bin \
        --config.label org.opencontainers.image.title="$name"
    umoci gc --layout "$layout" >/dev/null
    echo "$layout:1"
}

for image in image2disk inspect reboot writefile; do
    build "$image"
done
