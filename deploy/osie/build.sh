#!/usr/bin/env bash
# Build the OSIE: the kernel and the initrd that a machine netboots to be provisioned, with the agent inside.
#
#   build.sh --wheel FILE --python PYTHON --requirements FILE --cache DIR --out DIR [--arch amd64|arm64]
#            [--kernel PACKAGE] [--debs DIR]
#
# Makes DIR/kernel and DIR/initrd from Debian packages (from apt's configured mirror) and from the project's wheel. The wheel's dependencies are copied from PYTHON's own packages if the OSIE can run these, else pip
# fetches them. The initrd is one cpio archive of three parts:
#   init + busybox + the four kernel modules that mount the rest     (files/init, 2 MB)
#   base.squashfs    Debian's Python, crun, kernel modules, gRPC     (kept in the cache: changes with its package list)
#   agent.squashfs   the project's wheel                             (made each time)
# Squashed parts are mounted and stay compressed in memory, so the OSIE boots on a machine with 512 MB. README.md beside
# this file describes the boot.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
# The packages of the OSIE's root filesystem, besides their dependencies.
packages=(python3-minimal libpython3-stdlib crun busybox-static kmod ca-certificates zstd dhcpcd-base)
# The wheel's dependencies that the agent uses; their versions and hashes are those of the requirements file.
libraries=(click grpcio protobuf typing-extensions)
# Debian packages that this recipe needs.
tools=(mmdebstrap:mmdebstrap {mksquashfs,unsquashfs}:squashfs-tools cpio:cpio depmod:kmod dpkg-deb:dpkg busybox:busybox-static)

arch=$(dpkg --print-architecture)
kernel_package=''
wheel='' python='' requirements='' cache='' out='' debs=''

die() { echo "deploy/osie/build.sh: $*" >&2; exit 1; }
say() { echo "osie: $*" >&2; }
# shellcheck source=../kernel.sh
. "$here/../kernel.sh"
# shellcheck source=../debian-sources.sh
. "$here/../debian-sources.sh"

while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || die "$1 needs a value"
  case $1 in
    --wheel) wheel=$2 ;;
    --python) python=$2 ;;
    --requirements) requirements=$2 ;;
    --cache) cache=$2 ;;
    --out) out=$2 ;;
    --arch) arch=$2 ;;
    --kernel) kernel_package=$2 ;;
    --debs) debs=$2 ;; # the cache of the kernel's package
    *) die "unknown argument $1" ;;
  esac
  shift 2
done
for name in wheel python requirements cache out; do
  [ -n "${!name}" ] || die "--$name is missing"
done

case $arch in
  amd64) machine=x86_64 ;;
  arm64) machine=aarch64 ;;
  *) die "--arch $arch: neither amd64 nor arm64" ;;
esac
libraries_of=usr/lib/$machine-linux-gnu
kernel_package=${kernel_package:-linux-image-cloud-$arch}
# Files for another processor are unpacked and never run here.
is_foreign=''
[ "$arch" = "$(dpkg --print-architecture)" ] || is_foreign=yes

missing=()
for tool in "${tools[@]}"; do
  command -v "${tool%%:*}" >/dev/null || missing+=("${tool##*:}")
done
[ ${#missing[@]} -eq 0 ] || die "missing Debian packages: apt-get install ${missing[*]}"

mkdir -p "$cache" "$out"
work=$(mktemp -d "$cache/build.XXXXXX")
trap 'rm -rf "$work"' EXIT

# --- which Debian -------------------------------------------------------------------------------------------------

suite=bookworm
mirrors=$(debian_sources "$suite")
[ -n "$mirrors" ] || die "apt knows no Debian $suite mirror: run apt-get update, and look at /etc/apt/sources.list*"

if [ -n "$is_foreign" ]; then
  say "fetching the package lists of Debian $suite for $arch"
  APT_CONFIG=$(foreign_apt "$work/apt" "$arch" "$mirrors")
  export APT_CONFIG
fi

kernel_image=$(kernel_image "$kernel_package")
[ -n "$kernel_image" ] || die "--kernel $kernel_package: apt knows no such kernel package"

# --- base: Debian, gRPC, kernel modules ---------------------------------------------------------------------------

locked() { # PACKAGE...: print their lines of the requirements file, with version and hashes
  local name
  for name in "$@"; do
    awk -v begin="$name==" '/^[a-z0-9]/ {on = index($0, begin) == 1; found += on} on && !/^ *#/; END {exit !found}' "$requirements" ||
      die "--requirements $requirements: $name is not in it"
  done
}
locked "${libraries[@]}" >"$work/requirements.txt"

key=$({ sha256sum "$0" "$here"/installed.py "$here"/files/* "$here"/../{kernel,debian-sources}.sh | cut -d' ' -f1; echo "$mirrors" "$arch"; apt-cache policy "$kernel_image" | sed -n 3p
        echo "${packages[*]}"; cat "$work/requirements.txt"; } | sha256sum | cut -c1-16)
base=$cache/base-$arch-$kernel_package-$key

unpack_kernel() { # into $kernel, read-only
  kernel=$(kernel_tree "$kernel_image" "${debs:-$work/debs}" "$work/trees")
  version=$(ls "$kernel/lib/modules")
}

unpack_debian() { # into $work/root
  say "unpacking Debian $suite: ${packages[*]}"
  local include
  include=$(IFS=,; echo "${packages[*]}")
  # The extract variant runs no maintainer scripts, which these packages do not need: it takes only seconds.
  echo "$mirrors" | mmdebstrap --quiet --mode=root --variant=extract --include="$include" --architectures="$arch" \
    ${is_foreign:+--skip=check/qemu} \
    --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr --setup-hook="$(lists_hook)" \
    --aptopt='Acquire::Languages "none"' --aptopt='APT::Install-Recommends "false"' \
    "$suite" "$work/root" - >&2
  local r=$work/root
  rm -rf "$r"/usr/share/{doc,man,info,locale,lintian,bash-completion,perl5,zoneinfo,python3/debpython} \
    "$r/$libraries_of"/{gconv,perl-base} "$r"/var/lib/{apt,dpkg} "$r"/var/cache "$r"/var/log \
    "$r/$libraries_of"/{libsqlite3.so*,libdb-5.3.so,*.a} \
    "$r"/usr/lib/python3.11/{test,idlelib,tkinter,turtledemo,lib2to3,ensurepip,distutils,pydoc_data}
  mkdir -p "$r"/{proc,sys,dev,run,tmp,root,mnt,etc,var/tmp}
  ln -sfn /run "$r/var/run"
  # Normally written by the script of ca-certificates.
  mkdir -p "$r/etc/ssl/certs"
  cat "$r"/usr/share/ca-certificates/mozilla/*.crt >"$r/etc/ssl/certs/ca-certificates.crt"
  echo 'root:x:0:0:root:/root:/bin/sh' >"$r/etc/passwd"
  echo 'root:x:0:' >"$r/etc/group"
  printf '127.0.0.1 localhost\n::1 localhost\n' >"$r/etc/hosts"
  ln -sfn /run/osie/resolv.conf "$r/etc/resolv.conf"
  if [ -z "$is_foreign" ]; then
    chroot "$r" /bin/busybox --install -s /bin 2>/dev/null
  else
    local applet
    for applet in $(busybox --list); do
      [ -e "$r/bin/$applet" ] || [ -L "$r/bin/$applet" ] || ln -s /bin/busybox "$r/bin/$applet"
    done
  fi
}

compile_in() { # ROOT STRIPPED [OPTION...] PATH...: with the Python in ROOT, or this host's 3.11 for another processor
  local root=$1 stripped=$2 options=() compiler path paths=()
  shift 2
  while [[ $1 == -* ]]; do options+=("$1" "$2"); shift 2; done
  if [ -z "$is_foreign" ]; then
    for path in "$@"; do paths+=("$stripped/$path"); done
    chroot "$root" /usr/bin/python3.11 -m compileall -q "${options[@]}" -s "$stripped/" -p / "${paths[@]}"
    return
  fi
  for compiler in python3.11 "$python"; do
    # Byte code depends only on the version of Python.
    [ "$("$compiler" -c 'import sys; print(sys.version_info[:2])' 2>/dev/null)" != "(3, 11)" ] || break
    compiler=''
  done
  [ -n "$compiler" ] || { say "no Python 3.11 here to compile for $arch: the agent will start slower"; return; }
  for path in "$@"; do paths+=("$root$stripped/$path"); done
  "$compiler" -I -m compileall -q "${options[@]}" -s "$root$stripped/" -p / "${paths[@]}"
}

add_libraries() {
  say "adding ${libraries[*]}"
  local site=$work/root/usr/lib/python3/dist-packages
  mkdir -p "$site"
  local why status=0
  why=$("$python" -I "$here/installed.py" "$work/requirements.txt" "$machine" "$site") || status=$?
  case $status in
    0) say "the libraries are those of $python" ;;
    3) say "fetching the libraries: $why"; fetch_libraries "$site" ;;
    *) die "$python $here/installed.py ended with status $status" ;;
  esac
  # The OSIE can't keep byte code between boots, and compiling under emulation takes seconds.
  compile_in "$work/root" "" -j 0 usr/lib/python3.11 usr/lib/python3/dist-packages >/dev/null || true
}

fetch_libraries() { # INTO: with pip, PYTHON's or that of Debian's python3-pip
  local site=$1 pip=$python
  "$pip" -m pip --version >/dev/null 2>&1 || pip=/usr/bin/python3
  "$pip" -m pip --version >/dev/null 2>&1 || die "missing Debian packages: apt-get install --no-install-recommends python3-pip"
  "$pip" -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --target "$site" \
    --only-binary=:all: --python-version 3.11 --implementation cp --platform "manylinux_2_28_$machine" \
    --platform "manylinux2014_$machine" --platform "manylinux_2_17_$machine" --platform any \
    --require-hashes -r "$work/requirements.txt" >&2
  rm -rf "$site/bin"
}

add_modules() {
  local modules=$work/root/usr/lib/modules/$version source=$kernel/lib/modules/$version directory
  mkdir -p "$modules/kernel"
  for directory in drivers fs net lib crypto arch block; do
    [ -d "$source/kernel/$directory" ] && cp -a "$source/kernel/$directory" "$modules/kernel/"
  done
  # Not needed for provisioning, and most of the bytes of a kernel for real machines.
  for directory in drivers/{gpu,media,staging,iio,infiniband,isdn,bluetooth,leds,hwmon,platform,misc,power,pcmcia,target,accel} \
    drivers/{comedi,fpga,gnss,rtc,spi,i2c,video,w1,vfio,vhost,xen,extcon,mfd,devfreq,thermal,watchdog,greybus,soundwire} \
    drivers/net/{wireless,can,ieee802154,wwan,wireguard,ppp,slip,hamradio,arcnet} drivers/input/{joystick,touchscreen,tablet} \
    net/{netfilter,sunrpc,bluetooth,mac80211,wireless,can,ieee802154,nfc,batman-adv,rxrpc,openvswitch,sctp,dccp,tipc,rds,smc,ceph} \
    net/{sched,9p,l2tp,key,xfrm,tls,mptcp,mpls,atm,ax25,appletalk,phonet,hsr,nsh,ife,lapb,x25,vmw_vsock,kcm,strparser} \
    net/{ipv4,ipv6,bridge}/netfilter arch/x86/kvm \
    fs/{smb,nfs,nfsd,nfs_common,lockd,9p,dlm,fscache,cachefiles,ceph,ocfs2,gfs2,afs,coda,orangefs,jfs,reiserfs,hfs,hfsplus,ufs} \
    fs/{minix,nilfs2,ubifs,f2fs,sysv,qnx4,qnx6,romfs,efs,befs,bfs,omfs,adfs,affs,hpfs,jffs2,cramfs,erofs,zonefs,quota}; do
    rm -rf "$modules/kernel/$directory"
  done
  cp "$source"/modules.{builtin,builtin.modinfo,order} "$modules/"
  depmod -b "$work/root" "$version"
}

make_early() { # the part of the cpio that is not squashed
  local early=$work/early module
  mkdir -p "$early"/{bin,dev,proc,sys,run,root,lib/modules}
  if [ -n "$is_foreign" ]; then cp "$work/root/bin/busybox" "$early/bin/busybox"; else cp "$(command -v busybox)" "$early/bin/busybox"; fi
  install -m 0755 "$here/files/init" "$early/init"
  # Dependencies first, in the order of modprobe.
  : >"$early/lib/modules/order"
  for module in loop squashfs overlay; do
    modprobe --show-depends -d "$work/root" -S "$version" "$module" | awk '$1 == "insmod" {print $2}'
  done | awk '!seen[$0]++' | while read -r module; do
    cp "$module" "$early/lib/modules/"
    basename "$module" >>"$early/lib/modules/order"
  done
  (cd "$early" && find . -print0 | sort -z | cpio --quiet -0 -o -H newc --reproducible)
}

if [ ! -e "$base/complete" ]; then
  unpack_debian
  add_libraries
  # The recipe of the disk image, which runs at the same time, may have unpacked it by now.
  unpack_kernel
  add_modules
  install -D -m 0755 "$here/files/osie-init" "$work/root/sbin/osie-init"
  install -D -m 0755 "$here/files/dhcp-lease" "$work/root/usr/lib/osie/dhcp-lease"
  install -D -m 0755 "$here/files/dhcp6-lease" "$work/root/usr/lib/osie/dhcp6-lease"
  install -D -m 0644 "$here/files/dhcpcd.conf" "$work/root/usr/lib/osie/dhcpcd.conf"
  install -D -m 0644 "$here/files/dhcpcd-uki.conf" "$work/root/usr/lib/osie/dhcpcd-uki.conf"
  install -D -m 0755 "$here/files/after-workflow" "$work/root/usr/lib/osie/after-workflow"
  install -D -m 0644 "$here/files/process-one" "$work/root/usr/lib/osie/process-one"
  say "squashing"
  mkdir -p "$work/base"
  mksquashfs "$work/root" "$work/base/base.squashfs" -quiet -no-progress -noappend -all-root -no-xattrs \
    -comp zstd -Xcompression-level 6 -e "dev/*" >&2
  make_early >"$work/base/early.cpio"
  cp "$kernel/boot/vmlinuz-$version" "$work/base/kernel"
  : >"$work/base/complete"
  rm -rf "$base"
  mv "$work/base" "$base"
  # This recipe does not use older bases.
  find "$cache" -maxdepth 1 -name "base-$arch-$kernel_package-*" ! -name "${base##*/}" -exec rm -rf {} +
fi

# --- agent: the project's wheel -----------------------------------------------------------------------------------

# The OSIE's Python compiles it: byte code of this host's Python may be for another version.
unsquashfs -quiet -no-progress -d "$work/osie" "$base/base.squashfs" lib lib64 usr/bin/python3.11 usr/lib64 \
  "$libraries_of" usr/lib/python3.11 >&2
agent=$work/osie/agent
modules=usr/lib/python3/dist-packages
site=$agent/$modules
mkdir -p "$site" "$agent/usr/bin"
# A pure Python wheel is a zip archive of the files to install (PEP 427).
"$python" -m zipfile -e "$wheel" "$site" >&2
rm -rf "$site/edge/_deploy"
compiled=(
  proto tink/{__init__.py,errors.py,exec_limits.py,limits.py,mac.py,printable.py,waitdaemon.py,waiting.py,agent,net}
  tink/api/{__init__.py,bounds.py,inventory.py}
  edge/{__init__.py,cli.py,commands,settings}
)
compile_in "$work/osie" /agent "${compiled[@]/#/$modules/}"
cat >"$agent/usr/bin/tinkedge" <<'PY'
#!/usr/bin/python3 -I
from edge.cli import main

main()
PY
chmod 0755 "$agent/usr/bin/tinkedge"
mkdir "$work/layers"
cp "$base/base.squashfs" "$work/layers/"
mksquashfs "$agent" "$work/layers/agent.squashfs" -quiet -no-progress -noappend -all-root -no-xattrs -comp zstd >&2

# --- kernel and initrd --------------------------------------------------------------------------------------------

# The kernel unpacks concatenated archives as one.
{ cat "$base/early.cpio"; (cd "$work/layers" && printf 'base.squashfs\0agent.squashfs\0' | cpio --quiet -0 -o -H newc); } >"$work/initrd"
chmod 0644 "$work/initrd"
cp "$base/kernel" "$work/kernel.out"
mv "$work/kernel.out" "$out/kernel"
mv "$work/initrd" "$out/initrd"
say "kernel $(stat -c %s "$out/kernel") bytes, initrd $(stat -c %s "$out/initrd") bytes"
