# shellcheck shell=bash
# Debian packages: announce them, install them without starting or enabling their services, and remove them on request.
# Sourced by setup.sh, not run.

cache=${XDG_CACHE_HOME:-$HOME/.cache}/tinkedge
remembered=$cache/installed-packages   # the packages that this script has installed, one name a line
policy=/usr/sbin/policy-rc.d
links=$cache/enabled-before            # exists while packages are installed: the services that were enabled before

install_packages() {
  local wanted=() missing=() set package
  for set in "$@"; do
    [ -n "${sets[$set]:-}" ] || die "there is no package set $set (there are: ${!sets[*]})"
    for package in ${sets[$set]}; do wanted+=("$package"); done
  done
  [ ! -e "$links" ] || [ "$(id -u)" != 0 ] || keep_disabled # an earlier installation was killed
  for package in "${wanted[@]}"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null ||
    die "this is no Debian (12 and 13 are tried); please install by other means what these Debian packages have: ${missing[*]}"
  [ "$(id -u)" = 0 ] || die "missing Debian packages. As root: apt-get install --no-install-recommends ${missing[*]}"
  fetch_and_install "${missing[@]}"
}

unknown_names() { # print the names in all sets that apt does not know; its lists must be fetched
  local unknown
  # shellcheck disable=SC2048,SC2086  # one word a package
  unknown=$(printf '%s\n' ${sets[*]} | LC_ALL=C sort -u | LC_ALL=C comm -23 - \
    <(apt-cache pkgnames | LC_ALL=C sort -u))
  [ -z "$unknown" ] || die "apt knows no packages of these names: ${unknown//$'\n'/ }"
}

fetch_and_install() {
  local apt log presets preset=00-tinkedge-setup.preset directory ours=() failed=''
  export DEBIAN_FRONTEND=noninteractive LC_ALL=C
  apt=(apt_with_status -o DPkg::Lock::Timeout=300)
  log=$(mktemp)
  # The package lists may be missing or too old for what the mirror has now.
  watched "fetching Debian's package lists" "$log" lists_detail update_lists || failed=update
  if [ -z "$failed" ]; then
    announce "$(grep ^Fetched "$log" || true)" "$@"
    mkdir -p "$cache"
    installed_packages >"$log.before"
    enabled_links >"$links.new" && mv "$links.new" "$links"
    # The tests and the lab start services when they need them; the packages must not.
    [ -e $policy ] || ours+=("$policy")
    deny_services
    # Debian's packages ask systemd's presets whether to enable a unit (systemd.preset(5)). Presets in /run
    # disappear at a reboot, in case this script is killed.
    for directory in /run/systemd/system-preset /run/systemd/user-preset; do
      presets=$directory/$preset
      mkdir -p "$directory" && echo 'disable *' >"$presets"
      ours+=("$presets")
    done
    undo[services]="rm -f ${ours[*]}"
    install_in_turn "$@" || failed=install
    rm -f "${ours[@]}"
    rmdir --ignore-fail-on-non-empty /run/systemd/system-preset /run/systemd/user-preset
    unset 'undo[services]'
    keep_disabled
    installed_packages | comm -13 "$log.before" - >>"$remembered"
    sort -u -o "$remembered" "$remembered"
  fi
  [ -z "$failed" ] || grep -vE '^(dl|pm)status:' "$log" | tail -n 20 >&2
  rm -f "$log" "$log.before"
  [ -z "$failed" ] || die "apt-get could not install: $*"
}

update_lists() { # for fetch_and_install; waits while another apt (apt-daily after a boot, say) holds the lock
  local status error give_up=$((SECONDS + 300))
  error=$(mktemp)
  while status=0; "${apt[@]}" update 2>"$error" || status=$?; cat "$error" >&2; [ "$status" != 0 ]; do
    # DPkg::Lock::Timeout applies to dpkg's lock only, not to that of the lists (apt.conf(5)).
    if ! grep -q 'Could not get lock' "$error" || [ $SECONDS -ge $give_up ]; then break; fi
    sleep 2
  done
  rm -f "$error"
  return "$status"
}

lists_detail() { # print the progress in the log of update_lists
  local waits
  waits=$(grep '^E: Could not get lock' "$1" 2>/dev/null | tail -n 1) || true
  [ -z "$waits" ] || [ -z "$(tail -n 3 "$1" | grep '^E:')" ] || { echo "waiting for another apt: ${waits#E: }"; return; }
  apt_detail "$1"
}

install_in_turn() { # PACKAGE...: for fetch_and_install; first the packages for Python, then start "$beside" if set
  local package first=() rest=("$@")
  if [ -n "${beside:-}" ]; then
    rest=()
    for package in "$@"; do
      case " ${sets[python]} " in *" $package "*) first+=("$package") ;; *) rest+=("$package") ;; esac
    done
    [ ${#first[@]} -eq 0 ] || install_now "${first[@]}" || return 1
    "$beside"
  fi
  [ ${#rest[@]} -eq 0 ] || install_now "${rest[@]}"
}

install_now() { watched "installing Debian packages" "$log" apt_detail "${apt[@]}" install -y --no-install-recommends "$@"; }

deny_services() { # until this script ends; a policy of the administrator stays (invoke-rc.d(8))
  [ ! -e $policy ] || return 0
  undo[policy]="rm -f $policy"
  printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy
}

# Not descriptor 1: apt closes its status descriptor in the programs that it starts.
apt_with_status() { apt-get -o Dpkg::Use-Pty=0 -o APT::Status-Fd=5 "$@" 5>&1; }

announce() { # FETCHED PACKAGE...: print apt's figures for the installation; FETCHED is apt's line about its lists
  local fetched=$1 count mb room asked
  shift
  asked=$(mktemp)
  # Not --assume-no: apt does not ask if it installs only the named packages.
  watched "asking apt what that brings" "$asked" true apt-get install --no-install-recommends --print-uris "$@" || true
  read -r count mb room < <(awk '
    function megabytes(number, unit) { return int(number * (unit ~ /^G/ ? 1000 : unit ~ /^M/ ? 1 : unit ~ /^k/ ? 0.001 : 0.000001) + 0.5) }
    /newly installed/ {count = $3}
    /^Need to get/ {split($4, size, "/"); get = megabytes(size[1], $5)}
    /^After this/ {room = megabytes($4, $5)}
    END {print count + 0, get + 0, room + 0}' "$asked") || true
  rm -f "$asked"
  # Unpacking and configuring take 0.4 seconds for each MB.
  [ -z "${announced:-}" ] || "$announced" "$mb" $((mb * 2 / 5)) "$fetched"
  echo "setup: $count Debian packages: $mb MB to download, $room MB on the disk" >&2
  echo "setup: for $*" >&2
}

installed_packages() { dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' | awk '/^ii/ {print $2}' | LC_ALL=C sort -u; }

enabled_links() { # print the links by which systemd and System V start services at boot
  find /etc/systemd/system /etc/systemd/user /etc/rc[S2-5].d -type l \
    \( -path '*.wants/*' -o -path '*.requires/*' -o -path '/etc/systemd/*/*.service' -o -path '/etc/rc*/S*' \) 2>/dev/null |
    LC_ALL=C sort || true
}

keep_disabled() { # disable the services that were enabled since $links was written
  local link name
  while read -r link; do
    case $link in
      /etc/rc*)
        name=${link##*/S[0-9][0-9]}
        [ ! -L "$link" ] || update-rc.d "$name" disable >/dev/null 2>&1 || rm -f "$link"
        ;;
      *) rm -f "$link" ;;
    esac
  done < <(enabled_links | LC_ALL=C comm -13 "$links" -)
  rm -f "$links"
}

say_left_behind() { # print it at the end of `make run`
  local number=0
  [ ! -s "$remembered" ] || number=$(wc -l <"$remembered")
  echo "left on this machine: $venv ($(megabytes "$venv") MB), the cache $cache ($(megabytes "$cache") MB)," \
    "and $number Debian packages that were not there before ($remembered), none of them started or enabled." \
    "\`make clean-all CONFIRM=1\` takes it all away."
}

megabytes() { du -sm "$1" 2>/dev/null | cut -f 1; }

remove_all() { # remove the installed packages and the cache
  local packages=() gone package extra=()
  if [ -s "$remembered" ]; then
    mapfile -t packages < <(installed_packages | LC_ALL=C comm -12 - "$remembered")
  fi
  if [ "${CONFIRM:-}" != 1 ]; then
    echo "setup: would remove $cache, .venv and these packages: ${packages[*]:-none}" >&2
    die "to do so: make clean-all CONFIRM=1"
  fi
  if [ ${#packages[@]} -gt 0 ]; then
    [ "$(id -u)" = 0 ] || die "packages are removed by root only: ${packages[*]}"
    gone=$(apt-get -s purge "${packages[@]}" | awk '$1 == "Purg" || $1 == "Remv" {print $2}' | LC_ALL=C sort -u)
    mapfile -t extra < <(LC_ALL=C comm -23 <(echo "$gone") "$remembered")
    [ -z "${extra[*]}" ] || die "of the packages in $remembered, these others need some: ${extra[*]}. Take what they need out of that file, or remove them"
    package=$(mktemp)
    # Without a service manager (in a chroot or a container) there is no service to stop, and the call would fail.
    [ -d /run/systemd/system ] || deny_services
    # e2fsprogs is essential in Debian 13, but this machine did not have it before.
    DEBIAN_FRONTEND=noninteractive watched "removing ${#packages[@]} Debian packages" "$package" apt_detail \
      apt_with_status purge -y --allow-remove-essential "${packages[@]}" ||
      { tail -n 20 "$package" >&2; die "apt-get could not remove them"; }
    rm -f "$package"
  fi
  rm -rf "$cache"
}
