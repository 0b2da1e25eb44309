# shellcheck shell=bash
# Show progress during long steps: one line that is updated on a terminal, elsewhere a line every three seconds.
# Sourced by setup.sh, not run.

watched() { # WHAT LOG DETAIL COMMAND...: run COMMAND, with its output in the file LOG; DETAIL prints the progress
  local what=$1 log=$2 detail=$3 ticker status=0
  shift 3
  # Print the first line at once: several short steps in a row would else add up to a long silence.
  [ -t 2 ] || echo "setup: $what" >&2
  # The ticker ends at the end of its input. Not by kill(1): bash 5.2 runs the EXIT trap in a process that is killed right
  # after its fork, and removes files that are still needed. Not by a line either: `read -t` loses a line that arrives at its timeout.
  exec 9> >(tick "$what" "$log" "$detail")
  ticker=$!
  # In the foreground, so that it receives SIGINT.
  "$@" >"$log" 2>&1 9>&- || status=$?
  exec 9>&-
  wait "$ticker" 2>/dev/null || true
  [ ! -t 2 ] || printf '\r\033[K' >&2
  return "$status"
}

tick() { # WHAT LOG DETAIL: until the end of standard input
  local what=$1 log=$2 detail=$3 began=$SECONDS pause=3 line status
  [ ! -t 2 ] || pause=1
  # Not sleep(1): it would outlive this process and hold standard error open.
  while status=0; read -rt "$pause" || status=$?; [ "$status" -gt 128 ]; do
    line="setup: $what, $((SECONDS - began)) s: $("$detail" "$log")"
    if [ -t 2 ]; then printf '\r\033[K%s' "${line:0:100}" >&2; else printf '%s\n' "$line" >&2; fi
  done
}

apt_detail() { # print the progress in a log with apt's status lines (APT::Status-Fd)
  awk -F: '/^(dl|pm)status:/ {last = int($3) " %, " $4} /^(Get|Hit):/ {fetched = $0}
    END {print last != "" ? last : fetched}' "$1" 2>/dev/null || true
}

debian_detail() { # print the progress in the output of mmdebstrap
  sed -n 's/^I: //p' "$1" 2>/dev/null | tail -n 1
}

pip_detail() { # print the progress in the output of pip
  awk '/Downloading / {number++; last = $0; sub(/^ *Downloading /, "", last)} /Installing collected/ {last = "unpacking"}
    END {print number + 0 " files, " last}' "$1" 2>/dev/null || true
}
