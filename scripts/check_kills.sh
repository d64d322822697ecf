#!/bin/sh
# check_kills.sh -- a run that is killed (SIGKILL) at random moments, over and over, and goes on each time from its last checkpoint,
#                   ends with the bytes of a run that was left alone.
#
# Usage    sh scripts/check_kills.sh [KILLS [OPTION...]]      after make; 300 kills of a run with --recipe fp8 unless told, some minutes
# Env      TRAIN_GPT (./train_gpt), TMPDIR
# Prints   the number of kills, of those within a save, before any checkpoint was there and within a line of a log; of runs that were
#          finished and compared
# Status   0: every finished run was the same in all of same_run.sh, and after every kill the logs were whole lines but for at most
#          the last, which goes when the run goes on; 1: a run was not the same, or could not go on
set -u
cd "$(dirname "$0")/.." || exit 1
. scripts/same_run.sh
train_gpt=${TRAIN_GPT:-./train_gpt} kills=${1:-300}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- --recipe fp8
[ -x "$train_gpt" ] || { echo "$train_gpt is missing: run make first"; exit 1; }
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
run=$folder/run

# go OUT OPTION...: as a run of its own, or on from where the last one was killed.
go() {
    out=$1
    shift
    if ls "$out" 2>/dev/null | grep -q '^step_[0-9]*$'; then exec "$train_gpt" --resume "$out"; fi
    exec "$train_gpt" "$@" --layers 1 --heads 2 --channels 32 --context 32 --batch 4 --steps 300 --save-every 1 --keep 2 --ema 0.9 \
        --shadow-every 5 --eval-every 50 --eval-batches 1 --tokens 0 --out "$out"
}
fail() { tail -n 1 "$folder/log"; echo "after $killed kills $1"; exit 1; }
compare() { [ "$(everything "$run" 300 | cksum)" = "$expected" ] || fail "the run is not the one that was left alone"; }

killed=0 saving=0 anew=0 cut=0 compared=1 random=1
(go "$folder/whole" "$@") >"$folder/log" 2>&1 || fail "the run that is left alone failed"
expected=$(everything "$folder/whole" 300 | cksum)
while [ $killed -lt "$kills" ]; do
    random=$((random * 16807 % 2147483647)) # Park and Miller 1988
    (go "$run" "$@") >"$folder/log" 2>&1 &
    sleep "0.$(printf %03d $((random % 600)))"
    kill -KILL $! 2>/dev/null
    wait $! 2>/dev/null
    case $? in
    137)
        killed=$((killed + 1))
        whole_lines "$run" || fail "a log was broken"
        for at in "$run"/step_*; do
            case ${at##*/step_} in
            '*') anew=$((anew + 1)) ;;
            *.part) saving=$((saving + 1)) ;; # or removing an older one
            *) [ -s "$at/model.safetensors" ] && [ -s "$at/config.json" ] && [ -s "$at/state.safetensors" ] || fail "$at lacked a file" ;;
            esac
        done
        ;;
    0)
        compare
        compared=$((compared + 1))
        rm -rf "$run"
        ;;
    *) fail "the run could not go on" ;;
    esac
done
(go "$run" "$@") >"$folder/log" 2>&1 || fail "the run could not go on"
compare
[ "$(ls "$run" | grep -c 'part$')" = 0 ] || fail "a .part was left"
echo "killed $killed times: $saving times within a save, $anew times before anything was saved, $cut times within a line; $compared runs finished, each the same as the one that was left alone"
