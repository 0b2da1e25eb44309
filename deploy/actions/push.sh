#!/bin/sh
# Pushes the images of build.sh to a registry with plain HTTP, as REGISTRY/actions/NAME:1.
#
#   push.sh OUT_DIR REGISTRY      for example: push.sh build/actions 172.31.0.1:5000
#
# Needs: skopeo (Debian package of that name).
set -eu

[ $# -eq 2 ] || { echo "usage: $0 OUT_DIR REGISTRY" >&2; exit 2; }
command -v skopeo >/dev/null || { echo "$0: skopeo is not installed (apt-get install skopeo)" >&2; exit 1; }
for image in image2disk inspect reboot wipe writefile; do
    skopeo copy --quiet --insecure-policy --dest-tls-verify=false "oci:$1/$image:1" "docker://$2/actions/$image:1"
    echo "$2/actions/$image:1"
done
