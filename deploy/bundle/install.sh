#!/bin/sh
# Install what a bundle brings: on a Debian with what it has. Unpacked with its SHA256SUMS, whose signature and hashes
# have been checked before this runs (docs/airgap.md):
#
#   sh install.sh
#
# Nothing is downloaded, enabled or started. A package that the system has in this or a newer version stays as it is.
set -eu
cd "$(dirname "$0")"

die() { echo "install: $*" >&2; exit 1; }

[ "$(id -u)" = 0 ] || die "as root only: it installs packages"
[ -f SHA256SUMS ] || die "SHA256SUMS is missing: unpack the bundle as docs/airgap.md says"

# What is not signed must not be here: others would take it for a part of this.
[ -z "$(find . ! -type d ! -type f)" ] || die "there is something else than files here: $(find . ! -type d ! -type f | head -n 3)"
named=$(mktemp) && there=$(mktemp)
trap 'rm -f "$named" "$there"' EXIT
sed 's/^[0-9a-f]*  //' SHA256SUMS | sort >"$named"
find . -type f | sed 's|^\./||' | grep -vx -e SHA256SUMS -e SHA256SUMS.sig | sort >"$there"
extra=$(comm -13 "$named" "$there")
[ -z "$extra" ] || die "not in SHA256SUMS: $extra. Unpack the bundle into an empty directory; if it is still there, it was changed on its way"

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
  # apt for the order, and with no source but these files. --reinstall: should the same version have been built anew.
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
