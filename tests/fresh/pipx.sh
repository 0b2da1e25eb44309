#!/bin/sh
# pipx.sh DIRECTORY: on a fresh Debian, what docs/installing.md says of pipx, with the wheel in DIRECTORY: installed, it
# serves a network, and the kubectl in DIRECTORY speaks with it. Removed, nothing is left in the user's directories.
set -eu
directory=$1
export DEBIAN_FRONTEND=noninteractive PATH="$PATH:/root/.local/bin"
apt-get -q update
apt-get -q -y install --no-install-recommends pipx ipxe iproute2
pipx install "$directory"/tinkedge-*.whl
tinkedge --version

# In a network of its own, as a server has it that faces machines.
# shellcheck disable=SC2016  # for the inner shell
unshare --net sh -euc '
  ip link set lo up
  ip link add eth1 type bridge
  ip address add 172.31.77.1/24 dev eth1
  ip link set eth1 up
  tinkedge up --interface eth1 --data-dir "$0/data" >"$0/log" 2>&1 &
  trap "kill $! 2>/dev/null || true" EXIT
  tries=0
  until tinkedge health --interface eth1; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || { cat "$0/log"; exit 1; }
    sleep 0.2
  done
  export KUBECONFIG="$0/data/kubeconfig"
  "$0/kubectl" apply -f deploy/examples/hardware.yaml -f deploy/examples/osie.yaml
  "$0/kubectl" get hardware lab-machine
  tinkedge doctor --interface eth1 --data-dir "$0/data" || [ $? = 3 ]
  kill $!
  wait $!
' "$directory"

pipx uninstall tinkedge
[ ! -e /root/.local/bin/tinkedge ]
