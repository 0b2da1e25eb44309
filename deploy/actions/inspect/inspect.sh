#!/bin/sh
# inspect: prints the disks of the machine. Changes nothing.
#
#   DEST_DISK   the disk that a later action will write (optional); the action fails if it does not exist
set -u

fail() {
    echo "$2" >&2
    echo "$1" > /tinkerbell/failure-reason
    echo "$2" > /tinkerbell/failure-message
    exit 1
}

found=0
for block in /sys/block/*; do
    # Only disks with hardware: no loop, ram or device-mapper disks.
    [ -e "$block/device" ] || continue
    found=$((found + 1))
    size=$(cat "$block/size") # in units of 512 bytes, whatever the disk's own are
    model="no model"
    [ ! -r "$block/device/model" ] || read -r model < "$block/device/model" # without the blanks that pad it
    echo "/dev/${block##*/}: $((size / 2048)) MiB, $model, removable $(cat "$block/removable")"
done
[ "$found" -gt 0 ] || echo "no disks"

[ -n "${DEST_DISK:-}" ] || exit 0
[ -b "$DEST_DISK" ] || fail DiskNotFound "DEST_DISK $DEST_DISK is not a block device of this machine"
# A protective or real MBR ends with 55aa; a GPT's header begins the second sector.
signature=$(dd if="$DEST_DISK" bs=1 skip=510 count=2 2>/dev/null | od -An -tx1 | tr -d ' \n')
own=$(blockdev --getss "$DEST_DISK")
gpt=
for sector in 512 4096; do
    [ "$(dd if="$DEST_DISK" bs=$sector skip=1 count=1 2>/dev/null | head -c 8 | tr -cd 'A-Z ')" != "EFI PART" ] ||
        gpt="$gpt $sector"
done
case "$signature:$gpt " in
    *:*" $own "*) echo "$DEST_DISK: has a GPT" ;;
    *:*" "[0-9]*) echo "$DEST_DISK: has a GPT for sectors of$gpt bytes, and its sectors have $own: no partitions" ;;
    55aa:*) echo "$DEST_DISK: has an MBR" ;;
    *) echo "$DEST_DISK: has no partition table" ;;
esac
