#!/bin/sh
# Install the packages of a bundle on a Debian. Unpack the bundle with its SHA256SUMS, and check signature and hashes before
# you run this (docs/airgap.md):
#
#   sh install.sh
#
# Nothing is downloaded, enabled or started. Packages that the system has in the same or a newer version are not changed.
set -eu
cd "$(dirname "$0")"

die() { echo "install: $*" >&2; exit 1; }

[ "$(id -u)" = 0 ] || die "as root only: it installs packages"
[ -f SHA256SUMS ] || die "SHA256SUMS is missing: unpack the bundle as docs/airgap.md says"

# No unsigned files may be here: apt could take them for a part of the bundle.
[ -z "$(find . ! -type d ! -type f)" ] || die "not a regular file: $(find . ! -type d ! -type f | head -n 3)"
named=$(mktemp) && there=$(mktemp)
trap 'rm -f "$named" "$there"' EXIT
sed 's/^[0-9a-f]*  //' SHA256SUMS | sort >"$named"
find . -type f | sed 's|^\./||' | grep -vx -e SHA256SUMS -e SHA256SUMS.sig | sort >"$there"
extra=$(comm -13 "$named" "$there")
[ -z "$extra" ] || die "not in SHA256SUMS: $extra. Unpack the bundle into an empty directory; if the file is still there, the bundle was modified"

installed() { dpkg-query --show --showformat '${db:Status-Status} ${Version}' "$1" 2>/dev/null | sed -n 's/^installed //p'; }

if grep -q '^debian/tinkedge_' "$named"; then
  architecture=$(dpkg --print-architecture)
  set --
  for package in $(grep '^debian/' "$named"); do
    [ -f "$package" ] || die "$package is missing: unpack the bundle again"
    name=$(dpkg-deb --field "$package" Package)
    version=$(dpkg-deb --field "$package" Version)
    case $(dpkg-deb --field "$package" Architecture) in
      all | "$architecture") ;;
      *) die "$package is not for this processor ($architecture): make a bundle with the package for it" ;;
    esac
    here=$(installed "$name")
    if [ "$name" = tinkedge ]; then
      suite=${version##*+deb}
      . /etc/os-release
      [ "${ID:-}" != debian ] || [ "${VERSION_ID:-}" = "$suite" ] ||
        die "tinkedge $version is for Debian $suite, and this is ${PRETTY_NAME:-another}: make a bundle with the package for it"
      [ -z "$here" ] || ! dpkg --compare-versions "$here" gt "$version" ||
        die "tinkedge $here is installed, which is newer than $version: docs/upgrading.md says how to go back"
    elif [ -n "$here" ] && dpkg --compare-versions "$here" ge "$version"; then
      continue
    fi
    set -- "$@" "$PWD/$package"
  done
  echo "install: $# of $(grep -c '^debian/' "$named") packages"
  # apt finds the order; these files are its only source. --reinstall: the same version may have been rebuilt.
  DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts=/dev/null \
    -o APT::Sandbox::User=root --no-install-recommends --reinstall install "$@"
elif grep -q '^wheels/' "$named"; then
  bash wheels/install.sh --wheels wheels
fi
if [ -f bin/kubectl ]; then
  mkdir -p /usr/local/bin
  install -m 0755 bin/kubectl /usr/local/bin/kubectl
  echo "install: /usr/local/bin/kubectl"
fi
echo "install: next, what the bundle brings for machines: tinkedge bundle load BUNDLE --key KEY"
