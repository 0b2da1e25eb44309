#!/usr/bin/env bash
# Install tinkedge on any Linux with systemd and Python 3.11 or newer, without the system's package manager. As root:
#
#   install.sh                   from the wheels in dist/wheels, which `make wheels` makes
#     --wheels DIR               from the wheels in DIR, after a check of their hashes
#     --prefix DIR               the environment; default /opt/tinkedge
#   install.sh --uninstall       remove it; state and settings stay
#
# Running it again upgrades. If the upgrade fails, the previous installation is restored. Units are copied, not enabled.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
wheels=$here/../dist/wheels prefix=/opt/tinkedge uninstall=''
link=/usr/local/bin/tinkedge units=/usr/local/lib/systemd/system

die() { echo "install: $*" >&2; exit 1; }

while [ $# -gt 0 ]; do
  case $1 in
    --wheels | --prefix) [ $# -ge 2 ] || die "$1 needs a value"; if [ "$1" = --wheels ]; then wheels=$2; else prefix=$2; fi; shift ;;
    --uninstall) uninstall=1 ;;
    -h | --help) sed -n '2,/^set /{/^set /!s/^# \{0,1\}//p}' "$0"; exit 0 ;;
    *) die "unknown argument $1 (--help)" ;;
  esac
  shift
done
case $prefix in /?*) ;; *) die "--prefix $prefix: not an absolute path" ;; esac
[ "$(id -u)" = 0 ] || die "as root only: it writes to $prefix and /usr/local"
list=$prefix/installed-files

reload() { [ ! -d /run/systemd/system ] || systemctl daemon-reload; }

remove_files() { # remove the files that an installation wrote outside of the prefix
  [ ! -f "$list" ] || while IFS= read -r file; do rm -f -- "$file"; done <"$list"
}

if [ -n "$uninstall" ]; then
  [ -f "$list" ] || die "$prefix is no installation of tinkedge"
  if [ -d /run/systemd/system ]; then
    for unit in "$units"/tinkedge*.service "$units"/tinkedge*.timer; do
      [ ! -e "$unit" ] || systemctl disable --now "${unit##*/}" 2>/dev/null || true
    done
  fi
  remove_files
  rm -rf --one-file-system -- "$prefix"
  reload
  echo "install: removed. State is left in /var/lib/tinkedge, backups in /var/lib/tinkedge-backups, settings in /etc/tinkedge and /etc/default/tinkedge, and the user tinkedge"
  exit 0
fi

[ -f "$wheels/requirements.txt" ] || die "no wheels in $wheels: make them with \`make wheels\`, or name them with --wheels DIR"
wheels=$(cd "$wheels" && pwd) # systemd-sysusers looks elsewhere for relative paths
[ ! -e "$prefix" ] || [ -f "$list" ] || [ -z "$(ls -A "$prefix")" ] || die "$prefix has other things in it: choose another --prefix"
[ ! -e "$link" ] || [ -L "$link" ] || die "$link is there already, and no link of ours"
python=$(command -v "$(cat "$wheels/python")" || command -v python3) || die "there is no python3"
"$python" -c 'import ensurepip, venv' 2>/dev/null || die "$python can't make virtual environments: apt-get install python3-venv"
made_for=$(cat "$wheels/python")
"$python" -c "import sys; sys.exit('python%d.%d' % sys.version_info[:2] != '$made_for')" ||
  die "the wheels are for $made_for, which is not here ($("$python" --version)): make others with \`make wheels SUITE=...\`"

pip_wheel() { # print the wheel of pip, or nothing: copying pip into the environment takes longer than all of tinkedge
  "$python" -c '
import ensurepip, itertools, pathlib, sysconfig
places = sysconfig.get_config_var("WHEEL_PKG_DIR"), pathlib.Path(ensurepip.__file__).with_name("_bundled")
wheels = itertools.chain.from_iterable(pathlib.Path(place).glob("pip-*.whl") for place in places if place)
print(next(wheels, ""))'
}

before=''
back() { # restore the previous installation
  rm -rf --one-file-system -- "$prefix"
  [ -z "$before" ] || mv "$before" "$prefix"
  die "nothing was changed"
}
trap back ERR
if [ -f "$list" ]; then before=$prefix.before; rm -rf --one-file-system -- "$before"; mv "$prefix" "$before"; fi
pip=$(pip_wheel)
"$python" -m venv ${pip:+--without-pip} "$prefix"
# The hash of every file is checked before anything of it runs.
PYTHONPATH=$pip "$prefix/bin/python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --require-hashes \
  --no-compile --find-links "$wheels" -r "$wheels/requirements.txt"
# Byte code, because services may not write here. Of the thousand modules of Kubernetes' client only a few are loaded.
"$prefix/bin/python" -m compileall -q -x '/kubernetes_asyncio/(client/(api|models)|dynamic|e2e_test|stream|utils|watch)/' \
  "$prefix/lib" >/dev/null || true
"$prefix/bin/tinkedge" --version >/dev/null
trap - ERR
[ -z "$before" ] || { list=$before/installed-files; remove_files; list=$prefix/installed-files; rm -rf --one-file-system -- "$before"; }

: >"$list"
place() { # MODE FILE TARGET
  install -D -m "$1" "$2" "$3"
  echo "$3" >>"$list"
}
mkdir -p "${link%/*}"
ln -sfn "$prefix/bin/tinkedge" "$link"
echo "$link" >>"$list"
(cd "$wheels/papers" && find . -type f) | while IFS= read -r paper; do
  place 0644 "$wheels/papers/$paper" "/usr/local/${paper#./usr/}"
done
for unit in "$wheels"/systemd/*.service "$wheels"/systemd/*.timer; do
  place 0644 "$unit" "$units/${unit##*/}"
  sed -i "s|/usr/bin/tinkedge|$link|g; s|file:///usr/share/doc/tinkedge/[^ ]*||" "$units/${unit##*/}"
done
[ -e /etc/default/tinkedge ] || install -D -m 0644 "$wheels/systemd/tinkedge.default" /etc/default/tinkedge
getent passwd tinkedge >/dev/null || systemd-sysusers "$wheels/systemd/tinkedge.sysusers" ||
  useradd --system --user-group --home-dir /var/lib/tinkedge --shell /usr/sbin/nologin tinkedge
[ -d /var/lib/tinkedge ] || install -d -m 0700 -o tinkedge -g tinkedge /var/lib/tinkedge
install -d -m 0755 /etc/tinkedge
reload
if [ -n "$before" ]; then
  echo "install: $("$link" --version), upgraded. Running services still use the old version: systemctl try-restart 'tinkedge*'"
else
  echo "install: $("$link" --version), in $prefix. Next: settings in /etc/default/tinkedge, then systemctl enable --now tinkedge"
fi
