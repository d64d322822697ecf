#!/bin/sh
# check_disk_full.sh -- a disk that fills up while a run trains: wherever that strikes, the run says so in one line and stops, and goes
#                       on from its last checkpoint, once there is room, to the bytes of a run that was left alone.
#
# Usage    sh scripts/check_disk_full.sh      after make; as root, who may mount the small disks (tmpfs); half a minute
# Env      TRAIN_GPT (./train_gpt), TMPDIR
# Prints   in which file the disk was full, how often
# Status   0: status 1, one line on stderr that names the file, no .part, and the same bytes in the end, on every disk; or nothing
#          could be mounted: "skipped"; 1: not so, or no disk was full in model.safetensors, in state.safetensors or in a log
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/same_run.sh
train_gpt=${TRAIN_GPT:-./train_gpt}
[ -x "$train_gpt" ] || { echo "$train_gpt is missing: run make first"; exit 1; }
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
folder=$(mktemp -d) || exit 1
disk=$folder/disk run=$folder/disk/run
trap 'umount "$disk" 2>/dev/null; rm -rf "$folder"' EXIT
mkdir "$disk"
mount -t tmpfs -o size=1m tmpfs "$disk" 2>/dev/null || { echo "skipped: no disk can be mounted here (not root?)"; exit 0; }
umount "$disk"

# go OUT: as a run of its own, or on from its last checkpoint. Checkpoints take as much room as logs do.
go() {
    if ls "$1" 2>/dev/null | grep -q '^step_[0-9]*$'; then set -- "$1" --resume "$1"; fi
    [ $# -gt 1 ] || set -- "$1" --recipe fp8 --layers 1 --heads 2 --channels 8 --context 8 --batch 2 --steps 60 --save-every "$every" --keep 100 --ema 0.9 \
        --shadow-every 2 --eval-every 0 --tokens 0 --out "$1"
    shift
    "$train_gpt" "$@" >"$folder/log" 2>"$folder/error"
}
fail() { cat "$folder/error"; echo "a disk of $size KiB, --save-every $every: $1"; exit 1; }

struck=
for every in 1 10; do
    size=0
    go "$folder/whole$every" || fail "the run that is left alone failed"
    expected=$(everything "$folder/whole$every" 60 | cksum)
    for size in 128 160 196 232 268 304 340 376 412 448; do
        mount -t tmpfs -o size=${size}k tmpfs "$disk" || exit 1
        go "$run" && fail "had room for all"
        [ $? = 1 ] || fail "the status was not 1"
        [ "$(wc -l <"$folder/error")" = 1 ] || fail "expected one line on stderr"
        file=$(sed -n "s|^train_gpt: $run/\(.*\): cannot be .*: No space left on device\$|\1|p" "$folder/error")
        [ -n "$file" ] || fail "expected the name of the file"
        struck="$struck${file##*/}
"
        [ -z "$(find "$disk" -name '*.part')" ] || fail "left $(find "$disk" -name '*.part')"
        mount -o remount,size=64m "$disk" || exit 1 # there is room again
        go "$run" || fail "cannot go on"
        [ "$(everything "$run" 60 | cksum)" = "$expected" ] || fail "the run is not the one that was left alone"
        umount "$disk"
    done
done
echo "the disk was full in" $(printf %s "$struck" | sort | uniq -c | sed 's/$/,/')
for file in model.safetensors state.safetensors jsonl; do
    case $struck in *$file*) ;; *) echo "no disk was full in $file: other sizes are needed"; exit 1 ;; esac
done
