#!/usr/bin/env bash
# Builds the example action images as OCI layouts, one per image, from programs that this Debian system has:
# busybox-static, Python and libzstd. No network, no daemon, no base image.
#
#   build.sh OUT_DIR [ARCH]    makes OUT_DIR/{image2disk,inspect,reboot,wipe,writefile}, each with the tag 1
#
# For another processor (ARCH arm64 or amd64) mmdebstrap fetches Debian's packages from this host's mirror; none of their
# programs runs here.
# Needs: umoci, busybox-static, libzstd1, python3 (Debian packages of these names). push.sh uploads the result to a registry.
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
# Modules that image2disk shares with tinkedge: standard library only. The package tink is beside deploy/ in a checkout, and beside
# edge/ where deploy/ is installed as a part of that.
shared='__init__ opener proxies urls'
for tink in "$here/../../tink" "$here/../../../tink"; do
    [ ! -e "$tink/net/opener.py" ] || break
done
[ -e "$tink/net/opener.py" ] || { echo "$0: the package tink is not beside these recipes; use those of tinkedge's checkout or wheel" >&2; exit 1; }
for program in umoci busybox ldd; do
    command -v "$program" >/dev/null || { echo "$0: $program is not installed (apt-get install umoci busybox-static python3)" >&2; exit 1; }
done
# Debian's Python, even if another one is first in PATH: the paths of its files are known.
python=/usr/bin/python3
[ -x "$python" ] || { echo "$0: $python is not there (apt-get install python3)" >&2; exit 1; }
busybox=$(command -v busybox)
# Debian's `busybox` without -static is linked dynamically, and the image has no libraries for it.
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
    echo "$mirrors" | mmdebstrap --quiet --mode=root --variant=extract --include=busybox-static,libzstd1,python3 \
        --architectures="$arch" --skip=check/qemu --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
        --aptopt='Acquire::Languages "none"' --aptopt='APT::Install-Recommends "false"' "$suite" "$foreign" - >&2
    busybox=$foreign/usr/bin/busybox
    [ -e "$busybox" ] || busybox=$foreign/bin/busybox
fi

# The root file system of all images: busybox under all its names.
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
    program=$(PATH=/usr/bin:$PATH command -v "$2")
    rm -f "$root_of_image/bin/$2"
    cp -L "$program" "$root_of_image/bin/$2"
    add_libraries "$root_of_image" "$program"
}

add_libraries() {
    root_of_image=$1
    shift
    ldd "$@" | sed -n 's/^\t\(.* => \)\{0,1\}\(\/[^ ]*\) (.*/\2/p' | sort -u | while read -r library; do
        add_library "$root_of_image" "$library"
    done
}

add_library() {
    mkdir -p "$1$(dirname "$2")"
    cp -L "$2" "$1$2"
}

# The same for another processor, where ldd can't run. Takes all libraries of these few packages.
add_foreign_program() {
    rm -f "$1/bin/$2"
    cp -L "$foreign/usr/bin/$2" "$1/bin/$2"
    mkdir -p "$1/$(dirname "$loader")" "$1/lib/$machine-linux-gnu"
    cp -L "$foreign/$loader" "$1/$loader"
    for library in c m z lzma zstd ffi gcc_s stdc++ bz2 crypto expat ssl; do
        for file in "$foreign/usr/lib/$machine-linux-gnu/lib$library".so.[0-9] \
            "$foreign/usr/lib/$machine-linux-gnu/lib$library".so.[0-9].[0-9]; do
            [ ! -e "$file" ] || cp -L "$file" "$1/lib/$machine-linux-gnu/"
        done
    done
}

# Python with the modules that image2disk and wipe need. All modules would be 54 MB for each machine to download.
modules='collections ctypes email encodings http importlib json pathlib re urllib'
extensions='_bz2 _contextvars _ctypes _hashlib _json _lzma _queue _ssl _typing mmap'
add_python() {
    root_of_image=$1 of=''
    [ "$arch" = "$own" ] || of=$foreign
    add_program "$root_of_image" python3
    library=$(cd "$of/usr/lib" && echo python3.[0-9]*)
    to=$root_of_image/usr/lib/$library
    mkdir -p "$to/lib-dynload"
    for module in $modules; do
        [ ! -d "$of/usr/lib/$library/$module" ] || cp -rL "$of/usr/lib/$library/$module" "$to/"
    done
    cp -L "$of/usr/lib/$library"/*.py "$to/"
    for extension in $extensions; do
        for file in "$of/usr/lib/$library/lib-dynload/$extension".*.so; do
            [ ! -e "$file" ] || cp -L "$file" "$to/lib-dynload/"
        done
    done
    if [ "$arch" = "$own" ]; then
        add_libraries "$root_of_image" "$to/lib-dynload"/*.so
        # glibc loads libgcc_s when a thread ends, and ends the process where it can't. image2disk loads libzstd itself.
        for soname in libgcc_s libzstd; do
            file=$(ldconfig -p | sed -n "s/.*$soname\.so\.1 .* => //p" | head -n 1)
            [ -n "$file" ] || { echo "$0: $soname.so.1 is not installed (apt-get install libgcc-s1 libzstd1)" >&2; exit 1; }
            add_library "$root_of_image" "$file"
        done
    fi
    rm -rf "$to"/*/__pycache__ "$to"/*/*/__pycache__
    # If the host has no authorities, image2disk reads https URLs only with IMG_SHA256.
    mkdir -p "$root_of_image/usr/lib/ssl"
    [ ! -e /etc/ssl/certs/ca-certificates.crt ] || cp -L /etc/ssl/certs/ca-certificates.crt "$root_of_image/usr/lib/ssl/cert.pem"
    for package in image2disk wipe; do
        mkdir -p "$to/$package"
        cp "$here/$package"/*.py "$to/$package/"
    done
    mkdir -p "$to/tink/net"
    # Modules that it shares with the agent: the registry client, proxies and URLs.
    mkdir -p "$to/tink/registry"
    cp "$tink/__init__.py" "$tink/errors.py" "$to/tink/"
    cp "$tink"/registry/*.py "$to/tink/registry/"
    for module in $shared; do
        cp "$tink/net/$module.py" "$to/tink/net/"
    done
    # Compiled once here, if the image has this version of Python.
    if [ "$library" = "$("$python" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')" ]; then
        "$python" -I -m compileall -q --invalidation-mode unchecked-hash -s "$root_of_image" "$to"
    fi
    for package in image2disk wipe; do
        printf '#!/bin/sh\nexec /bin/python3 -I -m %s\n' "$package" > "$root_of_image/bin/$package"
        chmod 0755 "$root_of_image/bin/$package"
    done
}

build() {
    name=$1
    layout=$out/$name
    rm -rf "$layout" "${work:?}/${name:?}"
    cp -a "$root" "$work/$name"
    if [ "$name" = image2disk ] || [ "$name" = wipe ]; then
        add_python "$work/$name"
    else
        install -m 0755 "$here/$name/$name.sh" "$work/$name/bin/$name"
    fi
    umoci init --layout "$layout"
    umoci new --image "$layout:1"
    umoci insert --image "$layout:1" "$work/$name" / >/dev/null
    umoci config --image "$layout:1" --architecture "$arch" --config.entrypoint "/bin/$name" --config.env PATH=/bin \
        --config.label org.opencontainers.image.title="$name"
    umoci gc --layout "$layout" >/dev/null
    echo "$layout:1"
}

for image in image2disk inspect reboot wipe writefile; do
    build "$image"
done
