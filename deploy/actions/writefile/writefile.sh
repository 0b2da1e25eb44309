#!/bin/sh
# writefile: writes one file into a filesystem on the disk, as tinkerbell's action of this name does.
#
#   DEST_DISK   the partition (or disk) with the filesystem, a block device
#   FS_TYPE     ext4, xfs, vfat, ...; by default each type that the kernel supports is tried
#   DEST_PATH   path of the file in that filesystem: absolute, without ..
#   CONTENTS    content of the file, byte for byte: no line end is added
#   MODE        mode of the file, octal (default 0644)
#   DIRMODE     mode of new directories, octal (default 0755)
#   UID, GID    owner of the file and of new directories, numbers (default 0)
#
# A file or link of that name is replaced atomically. Directories may be links, as long
# as they stay in the filesystem; an absolute link leads out of it, for it is not mounted at /.
#
# A partition from an older partition table in the kernel is rejected: it would have the old filesystem.
#
# Failure reasons: InvalidSetting, DiskNotFound, DiskBusy, MountFailed, WriteFailed.
set -u

mounted=
point=

fail() {
    [ -z "$mounted" ] || umount "$point"
    echo "$2" >&2
    echo "$1" > /tinkerbell/failure-reason
    echo "$2" > /tinkerbell/failure-message
    exit 1
}

# Print the value of the action's variable. Some shells set UID and GID themselves.
given() {
    tr '\n\0' '\001\n' < /proc/$$/environ | sed -n "s/^$1=//p" | head -n 1
}

octal() {
    case "$2" in
        *[!0-7]* | ?????*) ;;
        ???*) return ;;
    esac
    fail InvalidSetting "$1 is $2, not three or four octal digits such as 0644"
}

number() {
    case "$2" in
        *[!0-9]* | ???????????*) fail InvalidSetting "$1 is $2, not a number" ;;
    esac
}

disk=${DEST_DISK:-}
path=${DEST_PATH:-}
type=${FS_TYPE:-}
mode=${MODE:-0644}
dirmode=${DIRMODE:-0755}
uid=$(given UID)
gid=$(given GID)
uid=${uid:-0}
gid=${gid:-0}
[ -n "$disk" ] || fail InvalidSetting "DEST_DISK is not set"
[ -n "$path" ] || fail InvalidSetting "DEST_PATH is not set"
[ -n "${CONTENTS+set}" ] || fail InvalidSetting "CONTENTS is not set"
case "$path" in
    [!/]*) fail InvalidSetting "DEST_PATH $path is not absolute" ;;
    */ | */.) fail InvalidSetting "DEST_PATH $path names no file" ;;
esac
case "$path/" in
    */../*) fail InvalidSetting "DEST_PATH $path must not hold .." ;;
esac
case "$type" in
    *[!a-z0-9]*) fail InvalidSetting "FS_TYPE is $type, not the name of a filesystem such as ext4" ;;
esac
octal MODE "$mode"
octal DIRMODE "$dirmode"
number UID "$uid"
number GID "$gid"

# The kernel may still be reading the partition table that an earlier action has written.
tries=0
while [ ! -b "$disk" ]; do
    tries=$((tries + 1))
    [ $tries -le 10 ] || fail DiskNotFound "$disk is not a block device of this machine"
    sleep 1
done

# Print the number of $2 bytes at byte $1 of the disk $whole; nothing if the disk is shorter.
number_at() {
    od -A n -t "u$2" -j "$1" -N "$2" "$whole" 2> /dev/null | tr -d ' '
}

# Print the first sector of partition $1 in the table of the disk $whole, for sectors of $2 bytes; nothing if it has none.
start_by_table() {
    [ "$(number_at 510 2)" = 43605 ] || return # 55 AA
    for at in 450 466 482 498; do
        [ "$(number_at $at 1)" = 238 ] || continue             # protective MBR: UEFI 2.10 section 5.2.3
        [ "$(number_at "$2" 8)" = 6075990659671082565 ] && # "EFI PART"
            number_at $(($(number_at $(($2 + 72)) 8) * $2 + ($1 - 1) * 128 + 32)) 8
        return
    done
    [ "$1" -gt 4 ] || number_at $((446 + ($1 - 1) * 16 + 8)) 4
}

# A write to the disk changes the table. The kernel keeps the old partitions as long as one of them is in use.
node=$(readlink -f "/sys/class/block/$(basename "$(readlink -f "$disk")")")
if [ -f "$node/partition" ]; then
    whole=/dev/$(basename "$(dirname "$node")")
    sector=$(cat "$node/../queue/logical_block_size")
    start=$(start_by_table "$(cat "$node/partition")" "$sector")
    bytes=$(($(cat "$node/start") * 512))
    [ -z "$start" ] || [ $((start * sector)) = "$bytes" ] || fail DiskBusy "$disk begins at byte $bytes for the kernel, \
and at $((start * sector)) in the partition table of $whole: end what holds old partitions, or restart the machine"
fi

point=$(readlink -f "$(mktemp -d)")
log=$(mktemp)
# The first process of a container ignores a TERM without a handler.
trap '[ -z "$mounted" ] || umount "$point"; exit 143' TERM INT

said() {
    tail -n 1 "$log" | cut -c 1-200
}

# shellcheck disable=SC2086 - no word where there is no type
mount ${type:+-t $type} -o rw,nodev,nosuid,noexec "$disk" "$point" 2> "$log" ||
    fail MountFailed "$disk as ${type:-any filesystem that the kernel knows}: $(said)"
mounted=yes

# Step by step, so that no link leads out of the filesystem.
directory=$point
rest=${path#/}
while :; do
    case "$rest" in
        */*) step=${rest%%/*} rest=${rest#*/} ;;
        *) break ;;
    esac
    case "$step" in "" | .) continue ;; esac
    next=$directory/$step
    if [ -L "$next" ] || [ -e "$next" ]; then
        real=$(readlink -f "$next")
        case "$real/" in
            "$point"/*) ;;
            *) fail WriteFailed "$path: ${next#"$point"} is a link that leads out of the filesystem on $disk" ;;
        esac
        [ -d "$real" ] || fail WriteFailed "$path: ${next#"$point"} is no directory"
        directory=$real
    else
        { mkdir "$next" && chown "$uid:$gid" "$next" && chmod "$dirmode" "$next"; } 2> "$log" ||
            fail WriteFailed "$path: $(said)"
        directory=$next
    fi
done

file=$directory/$rest
[ -L "$file" ] || [ ! -d "$file" ] || fail WriteFailed "$path is a directory"
umask 077
# noclobber (-C): never write through an existing file or link.
{ rm -f "$file.new" && (set -C && printf '%s' "$CONTENTS" > "$file.new"); } 2> "$log" || {
    message=$(said)
    rm -f "$file.new"
    fail WriteFailed "$path: $message"
}
# FAT has no owners, and rejects chown. That is no error if the owner is root, as all files have there.
{ { [ "$uid:$gid" = 0:0 ] || chown "$uid:$gid" "$file.new"; } && chmod "$mode" "$file.new" && sync -f "$file.new" &&
    mv -fT "$file.new" "$file"; } 2> "$log" || {
    message=$(said)
    rm -f "$file.new"
    fail WriteFailed "$path: $message"
}
sync
mounted=
umount "$point" 2> "$log" || fail WriteFailed "$disk: cannot be unmounted: $(said)"
echo "$path written to $disk: ${#CONTENTS} characters, mode $mode, owner $uid:$gid"
