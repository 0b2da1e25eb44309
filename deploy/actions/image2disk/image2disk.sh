#!/bin/sh
# image2disk: streams a disk image from a URL onto a disk. Nothing is stored on the way.
#
#   IMG_URL      http or https (busybox' wget does not check certificates: give IMG_SHA256 too)
#   DEST_DISK    the disk, a block device: everything on it is lost
#   COMPRESSED   true: the image is compressed, as its name says: .gz, .zst, .xz, .bz2; false (default): it is raw
#   IMG_SHA256   the checksum of what the URL serves, in hex (optional)
#
# Reasons it fails with: InvalidSetting, DiskNotFound, DownloadFailed, DecompressFailed, ChecksumMismatch, WriteFailed.
set -u

fail() {
    echo "$1: $2" >&2
    echo "$1" > /tinkerbell/failure-reason
    echo "$2" > /tinkerbell/failure-message
    exit 1
}

url=${IMG_URL:-}
disk=${DEST_DISK:-}
sum=$(echo "${IMG_SHA256:-}" | tr 'A-F' 'a-f')
[ -n "$url" ] || fail InvalidSetting "IMG_URL is not set"
[ -n "$disk" ] || fail InvalidSetting "DEST_DISK is not set"
case "$sum" in
    *[!0-9a-f]*) fail InvalidSetting "IMG_SHA256 is not a checksum in hex" ;;
esac
[ -z "$sum" ] || [ ${#sum} -eq 64 ] || fail InvalidSetting "IMG_SHA256 has ${#sum} digits, not 64"

path=${url%%[?#]*}
case "${COMPRESSED:-false}:$path" in
    false:*) decompress="cat" ;;
    true:*.gz) decompress="gunzip -c" ;;
    true:*.zst | true:*.zs) decompress="zstd -dcq" ;;
    true:*.xz) decompress="unxz -c" ;;
    true:*.bz2) decompress="bunzip2 -c" ;;
    true:*) fail InvalidSetting "COMPRESSED is true, but $path does not end in .gz, .zst, .xz or .bz2" ;;
    *) fail InvalidSetting "COMPRESSED is ${COMPRESSED}, not true or false" ;;
esac

# A driver may still be looking for its disks.
tries=0
while [ ! -b "$disk" ]; do
    tries=$((tries + 1))
    [ $tries -le 10 ] || fail DiskNotFound "$disk is not a block device of this machine"
    sleep 1
done

work=$(mktemp -d)
mkfifo "$work/disk" "$work/sum" "$work/never"
# Nobody writes there: to read from it with a limit is to wait without a process for each time.
exec 4<> "$work/never"
# The first process of a container does not die of a TERM that it does not handle.
trap 'kill $(jobs -p) 2>/dev/null; exit 143' TERM INT

echo "writing $url to $disk"
begun=$(date +%s)
sha256sum < "$work/sum" > "$work/sha256" 2>/dev/null &
sum_pid=$!
# The disk is open here too, so that the position in it can be read while dd writes and when it has ended.
exec 3<> "$disk" || fail WriteFailed "cannot open $disk for writing"
dd bs=1M iflag=fullblock conv=fsync < "$work/disk" >&3 2> "$work/dd.log" &
dd_pid=$!
# Each stage leaves its own exit code, so that the one that failed first can be named.
# /bin/tee: by its name alone, busybox' shell runs its own.
{
    { wget -q -O - "$url" 2> "$work/wget.log"; echo $? > "$work/wget"; } |
        /bin/tee "$work/sum" |
        { $decompress 2> "$work/decompress.log"; echo $? > "$work/decompress"; } > "$work/disk"
} &
stream_pid=$!

written() {
    while read -r key value; do
        [ "$key" != pos: ] || echo "$value"
    done < /proc/$$/fdinfo/3
}

halves=0
while kill -0 $dd_pid 2>/dev/null; do
    halves=$((halves + 1))
    [ $((halves % 4)) -ne 0 ] || echo "$(($(written) / 1000000)) MB written"
    read -r -t 0.5 _ <&4
done
wait $dd_pid
dd_code=$?
wait $stream_pid
wait $sum_pid

said() {
    tail -n 1 "$work/$1" | cut -c 1-200
}

wget_code=$(cat "$work/wget")
decompress_code=$(cat "$work/decompress")
# In this order: a stage that dies takes those before it with it (141: of a closed pipe).
[ $dd_code -eq 0 ] || fail WriteFailed "$disk: $(grep '^dd:' "$work/dd.log" | tail -n 1)"
if [ "$wget_code" -ne 0 ] && [ "$wget_code" -ne 141 ]; then
    fail DownloadFailed "$url: $(said wget.log)"
fi
found=$(cut -d ' ' -f 1 "$work/sha256")
if [ -n "$sum" ] && [ "$wget_code" -eq 0 ] && [ "$decompress_code" -eq 0 ] && [ "$found" != "$sum" ]; then
    fail ChecksumMismatch "$url has the SHA-256 $found, not $sum; do not boot from $disk"
fi
[ "$decompress_code" -eq 0 ] || fail DecompressFailed "$url: not what its name says, or damaged: $(said decompress.log)"

total=$(written)
exec 3>&-
[ "$total" -gt 0 ] || fail DownloadFailed "$url: is empty"
blockdev --rereadpt "$disk" 2>/dev/null || echo "the kernel did not read the new partition table; a reboot does"
seconds=$(($(date +%s) - begun))
echo "$total bytes written to $disk in $seconds s, SHA-256 of the download $found"
