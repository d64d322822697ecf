#!/bin/sh
# check_kills.sh -- a run that is killed (SIGKILL) at random moments, over and over, and goes on each time from its last checkpoint,
#                   ends with the bytes of a run that was left alone.
#
# Usage    sh scripts/check_kills.sh [KILLS]      after make; 300 kills unless told, some minutes
# Env      TRAIN_GPT (./train_gpt), TMPDIR
# Prints   the number of kills, of those before any checkpoint was there, of runs that were finished and compared
# Status   0: every finished run was the same in every byte of weights and decisions; 1: one was not, or could not go on
set -u
cd "$(dirname "$0")/.." || exit 1
train_gpt=${TRAIN_GPT:-./train_gpt} kills=${1:-300}
[ -x "$train_gpt" ] || { echo "$train_gpt is missing: run make first"; exit 1; }
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT

# go OUT: as a run of its own, or on from where the last one was killed.
go() {
    if ls -d "$1"/step_* 2>/dev/null | grep -q 'step_[0-9]*$'; then exec "$train_gpt" --resume "$1"; fi
    exec "$train_gpt" --recipe fp8 --layers 1 --heads 2 --channels 32 --context 32 --batch 4 --steps 300 --save-every 1 --keep 2 --ema 0.9 \
        --shadow-every 5 --eval-every 50 --eval-batches 1 --tokens 0 --out "$1"
}
last() { cat "$1/step_300/model.safetensors" "$1/decisions.jsonl" "$1/shadow.jsonl" | cksum; }

(go "$folder/whole") >"$folder/log" 2>&1 || { tail -n 1 "$folder/log"; exit 1; }
expected=$(last "$folder/whole")
killed=0 anew=0 compared=0 random=1
while [ $killed -lt "$kills" ]; do
    random=$((random * 16807 % 2147483647)) # Park and Miller 1988
    (go "$folder/run") >"$folder/log" 2>&1 &
    sleep "0.$(printf %03d $((random % 600)))"
    kill -KILL $! 2>/dev/null
    wait $! 2>/dev/null
    status=$?
    case $status in
    137) killed=$((killed + 1)) ;;
    0)
        [ "$(last "$folder/run")" = "$expected" ] || { echo "after $killed kills the run is not the one that was left alone"; exit 1; }
        compared=$((compared + 1))
        rm -rf "$folder/run"
        ;;
    *) tail -n 1 "$folder/log"; echo "after $killed kills the run could not go on"; exit 1 ;;
    esac
    ls -d "$folder/run"/step_* >/dev/null 2>&1 || anew=$((anew + (status == 137)))
done
(go "$folder/run") >"$folder/log" 2>&1 && [ "$(last "$folder/run")" = "$expected" ] || { tail -n 1 "$folder/log"; echo "after $killed kills the run is not the one that was left alone"; exit 1; }
echo "killed $killed times, $anew times before its first checkpoint; $((compared + 1)) runs finished, each the same as the one that was left alone"
