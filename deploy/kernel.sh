# shellcheck shell=bash
# The kernel of the OSIE and of the disk images, fetched and unpacked once for both. Sourced by their recipes, which define
# say and die. KERNEL_TREES has unpacked kernels for recipes that run at the same time.

# kernel_image PACKAGE: print the package with the files if PACKAGE depends on the newest kernel; nothing if apt does not
# know it.
kernel_image() {
  case $1 in
    linux-image-[0-9]*) echo "$1" ;;
    *) { apt-cache depends "$1" 2>/dev/null || true; } | awk '/Depends: linux-image-[0-9]/ && !found {print $2; found = 1}' ;;
  esac
}

# kernel_deb PACKAGE CACHE: the path of this kernel package, downloaded into CACHE unless it is there already.
# apt downloads it, with its sources, proxies and signatures.
kernel_deb() {
  local package=$1 cache=$2 line file size hash
  # In a directory without the file: apt-get prints nothing for a file that it would not download.
  line=$(cd / && apt-get -o APT::Sandbox::User=root download --print-uris "$package" | tail -n 1)
  read -r _ file size hash <<<"$line"
  [[ $file == *.deb ]] || die "apt-get names no file for $package: '$line'"
  if [[ ! -f $cache/$file ]] || [[ $hash == SHA256:* && $(sha256sum <"$cache/$file") != "${hash#SHA256:}  -" ]]; then
    say "downloading $package: $((size / 1000000)) MB"
    rm -f -- "$cache/$file"
    (cd "$cache" && apt-get -q -q -o APT::Status-Fd=2 -o APT::Sandbox::User=root download "$package" >&2) ||
      die "apt-get could not download $package (is its index old? run 'apt-get update')"
  fi
  printf '%s\n' "$cache/$file"
}

# kernel_tree PACKAGE CACHE TREES: the path of a directory with the kernel package's boot/ and lib/modules/, for reading.
kernel_tree() {
  local package=$1 cache=$2 trees=${KERNEL_TREES:-$3} deb tree lock
  mkdir -p "$cache" "$trees"
  # Two recipes that run at the same time use the same tree.
  exec {lock}>"$trees/.lock"
  flock "$lock"
  deb=$(kernel_deb "$package" "$cache") || return 1
  tree=$trees/$(basename "$deb" .deb)
  if [[ ! -d $tree ]]; then
    say "unpacking $(basename "$deb")"
    rm -rf "$tree.new" && mkdir "$tree.new"
    dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$tree.new" ./boot ./lib/modules || return 1
    mv "$tree.new" "$tree"
  fi
  exec {lock}>&-
  printf '%s\n' "$tree"
}
