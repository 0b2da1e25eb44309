# shellcheck shell=bash
# What setup.sh shows while something takes long: on a terminal a line in place, elsewhere a line every three seconds.
# Sourced, not run.

watched() { # WHAT LOG DETAIL COMMAND...: run COMMAND, its output to the file LOG; DETAIL prints how far it is
  local what=$1 log=$2 detail=$3 ticker status=0
  shift 3
  # Said at once: short ones that follow each other would else add up to a long silence.
  [ -t 2 ] || echo "setup: $what" >&2
  # The ticker ends at the end of its input. Not by kill(1): bash 5.2 runs the EXIT trap in a process that is killed right
  # after its fork, and removes files that are still needed. Nor by a line: `read -t` loses one that comes at its timeout.
  exec 9> >(tick "$what" "$log" "$detail")
  ticker=$!
  # In the foreground, so that an interruption reaches it.
  "$@" >"$log" 2>&1 9>&- || status=$?
  exec 9>&-
  wait "$ticker" 2>/dev/null || true
  [ ! -t 2 ] || printf '\r\033[K' >&2
  return "$status"
}

tick() { # WHAT LOG DETAIL: until the end of standard input
  local what=$1 log=$2 detail=$3 began=$SECONDS pause=3 line status
  [ ! -t 2 ] || pause=1
  # Not sleep(1), which would outlive this one, and hold what standard error is open for until then.
  while status=0; read -rt "$pause" || status=$?; [ "$status" -gt 128 ]; do
    line="setup: $what, $((SECONDS - began)) s: $("$detail" "$log")"
    if [ -t 2 ]; then printf '\r\033[K%s' "${line:0:100}" >&2; else printf '%s\n' "$line" >&2; fi
  done
}

apt_detail() { # of a log with apt's status lines (APT::Status-Fd)
  awk -F: '/^(dl|pm)status:/ {last = int($3) " %, " $4} /^(Get|Hit):/ {fetched = $0}
    END {print last != "" ? last : fetched}' "$1" 2>/dev/null || true
}

debian_detail() { # of mmdebstrap's own output
  sed -n 's/^I: //p' "$1" 2>/dev/null | tail -n 1
}

pip_detail() { # of pip's own output
  awk '/Downloading / {number++; last = $0; sub(/^ *Downloading /, "", last)} /Installing collected/ {last = "unpacking"}
    END {print number + 0 " files, " last}' "$1" 2>/dev/null || true
}
