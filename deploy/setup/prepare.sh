# shellcheck shell=bash
# Install what `make run` and `make test` need. First print the size and the time, then run downloads and computation at
# the same time. Sourced by setup.sh, not run.

# Downloads after the Debian packages, in MB, and seconds on two idle processors, measured on Debian 12.
# deploy/requirements-run.txt has the MB of the Python packages to run with.
python_seconds=15
python_test_mb=130 python_test_seconds=30        # the packages of the tests
cloud_init_mb=55 cloud_init_seconds=30           # a small Debian with one release of cloud-init
tests_seconds=240
purpose=run
setup=deploy/setup.sh
kubectl_mb=21 kubectl_seconds=3
lab_mb=41 lab_seconds=15 boot_seconds=35         # OSIE, disk image, actions; from power-on to Succeeded
full_mb=75 full_seconds=60 full_boot_seconds=120 # with a Debian that is installed, until its cloud-init has reported
foreign_mb=16                                    # the package lists of Debian 12 on another Debian
usual_rate=10                                    # MB/s, if the downloads so far were too small to measure it

prepare_run() { # OPTION...: options of `tinkedge lab`
  local wanted=(python lab) options="$*"
  case $options in
    *uefi-arm64*) wanted+=(arm64) ;;
    *uefi*) wanted+=(uefi) ;;
  esac
  begin run "${wanted[@]}"
  await_python
  # Python compiles modules at their first import, and prints nothing meanwhile.
  local log
  log=$(mktemp)
  watched "preparing the first start" "$log" cat "$venv/bin/python" -c 'import edge.commands.lab' ||
    { tail -n 20 "$log" >&2; rm -f "$log"; die "the lab can't be imported"; }
  rm -f "$log"
}

prepare_test() {
  local options='' # those of the lab's machines that the tests boot
  begin test python lab uefi test
  make_cloud_init bookworm
  await_python
}

begin() { # COMMAND SET...: install the Debian packages; those of Python are still being installed when it returns
  purpose=$1 # run, test
  shift
  is_tried || say_elsewhere
  announced=plan # called by install_packages when the size of the downloads is known
  beside=bring_python
  install_packages "$@"
  beside=''
  [ -z "$announced" ] || plan 0 0 ''
  [ -n "${bringing:-}" ] || bring_python
}

system() { sed -n "s/^$1=//p" "${os_release:-/etc/os-release}" 2>/dev/null | tr -d '"'; } # of os-release(5)

is_tried() { case "$(system ID) $(system VERSION_ID)" in "debian 12" | "debian 13") ;; *) return 1 ;; esac; }

say_elsewhere() {
  local name
  name=$(system PRETTY_NAME)
  echo "setup: this is ${name:-no Linux that says its name}; \`make run\` is tried on Debian 12 and 13. It needs Python 3.11 or newer with" \
    "venv, apt with packages of the names that Debian has (or what they bring), and a mirror of Debian 12 that apt" \
    "knows: the machine's OSIE and disk are made of it" >&2
}

debian_is_known() { # fails if apt, with fetched lists, knows no mirror of Debian 12
  # shellcheck disable=SC2016  # the variable is apt's
  ! command -v apt-get >/dev/null || ! apt-get indextargets --format '$(ORIGIN)' 'Created-By: Packages' | grep -qx Debian || return 0
  die "apt knows no mirror of Debian 12. Name one, with a priority that leaves this machine's own packages its own:
  apt-get install --no-install-recommends debian-archive-keyring
  printf 'Package: *\nPin: release o=Debian\nPin-Priority: 1\n' >/etc/apt/preferences.d/debian
  echo 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] MIRROR bookworm main' >/etc/apt/sources.list.d/debian.list"
}

bring_python() { # install Python's packages and kubectl while Debian's packages are installed
  local run=()
  [ "$purpose" != run ] || run=(run)
  bringing=$(mktemp -d)
  declare -gA brought=()
  bring python "$setup" venv "${run[@]}"
  bring kubectl "$setup" kubectl run
  # Background processes do not receive SIGINT.
  undo[bringing]="kill -- ${brought[*]/#/-} 2>/dev/null || true; rm -rf $bringing"
}

bring() { # NAME COMMAND...: run it in the background in its own process group; write its exit status to a file
  # The file is renamed, because await_python reads it as soon as it exists.
  # shellcheck disable=SC2016  # the variables are the other shell's
  setsid bash -c '"$@"; echo $? >"$0.ended"; mv "$0.ended" "$0.status"' "$bringing/$1" "${@:2}" >"$bringing/$1" 2>&1 &
  brought[$1]=$!
}

await_python() {
  local name failed=0
  watched "installing Python packages" "$bringing/here" said_there all_have_ended
  for name in "${!brought[@]}"; do
    [ "$(cat "$bringing/$name.status" 2>/dev/null)" = 0 ] || { cat "$bringing/$name" >&2; failed=1; }
  done
  rm -rf "$bringing"
  unset 'undo[bringing]'
  return $failed
}

all_have_ended() { # checks the files: `wait` sometimes misses a process
  local name
  for name in "${!brought[@]}"; do
    while [ ! -e "$bringing/$name.status" ] && [ -d "/proc/${brought[$name]}" ]; do sleep 0.2 || true; done
  done
}

said_there() { sed -n 's/^setup: [^:]*: //; $p' "$bringing/python"; }

plan_run() {
  if ! venv_is_made run; then
    part=$(sed -n 's/^# size: \([0-9]*\) MB.*/\1/p' "$runtime")
    add_part "$part" $python_seconds "of Python packages"
  fi
  kubectl_is_here || add_part $kubectl_mb $kubectl_seconds "for kubectl"
  plan_lab
  goal="the machine has booted"
}

plan_test() {
  venv_is_made || add_part $python_test_mb $python_test_seconds "of Python packages"
  kubectl_is_here || add_part $kubectl_mb $kubectl_seconds "for kubectl"
  [ -d "$cache/cloud-init/bookworm" ] || add_part $cloud_init_mb $cloud_init_seconds "for cloud-init"
  plan_lab
  seconds=$((seconds - boot_seconds + tests_seconds)) # its machines boot among the tests
  goal="the tests have ended"
}

plan() { # MB SECONDS FETCHED: of the Debian packages; FETCHED is apt's line about its package lists, empty if unknown
  is_tried || debian_is_known
  local mb=$1 seconds=$2 rate source='' part parts=() total=$1 goal
  announced=''
  [ "$mb" = 0 ] || parts+=("$mb MB of Debian packages")
  "plan_$purpose"
  rate=$(measured_rate "$3")
  [ -z "$rate" ] || source=", as Debian's mirror gave just now"
  rate=${rate:-$usual_rate}
  seconds=$(((seconds + total / rate) * 2 / ($(nproc) < 2 ? 1 : 2)))
  if [ ${#parts[@]} -gt 0 ]; then
    part=$(printf '%s, ' "${parts[@]}")
    echo "setup: to download: ${part%, }: $total MB in all" >&2
  fi
  echo "setup: until $goal: $(spoken "$seconds") with $(nproc) processor$([ "$(nproc)" = 1 ] || echo s)$(
    [ "$total" = 0 ] || echo " and $rate MB/s$source")" >&2
}

add_part() { total=$((total + $1)) seconds=$((seconds + $2)) parts+=("$1 MB $3"); } # for plan

plan_lab() { # add the files that `tinkedge lab` will make, and its boot
  local made=$cache/images/tiny.raw.gz mb=$lab_mb work=$lab_seconds boot=$boot_seconds
  if [[ $options == *--full* ]]; then
    made=$cache/images/debian-cloud.raw.zst mb=$((lab_mb + full_mb)) work=$full_seconds boot=$full_boot_seconds
  fi
  grep -q 'VERSION_CODENAME=bookworm' /etc/os-release 2>/dev/null || mb=$((mb + foreign_mb))
  if [ ! -e "$made" ] || [ ! -e "$cache/osie" ]; then add_part "$mb" "$work" "for the machine's OSIE and disk"; fi
  seconds=$((seconds + boot))
}

measured_rate() { # FETCHED: "Fetched 15.8 MB in 5s (3415 kB/s)" -> 3, in MB/s; prints nothing if less than 1 MB was fetched
  awk '$3 == "MB" && $2 >= 1 {sub(/^\(/, "", $6); rate = $6 * ($7 == "MB/s)" ? 1 : 0.001); print rate < 1 ? 1 : int(rate + 0.5)}' <<<"$1"
}

spoken() { # SECONDS: print a duration in words
  if [ "$1" -lt 90 ]; then echo "about a minute"; else echo "about $((($1 + 30) / 60)) minutes"; fi
}
