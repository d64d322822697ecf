#!/bin/sh
# check_long_run.sh -- a long run with checkpoints needs no more memory at its end than after its first steps.
#
# Usage    sh scripts/check_long_run.sh [STEPS]      after make; 20,000 tiny steps unless told, a minute; Linux (/proc)
# Env      TRAIN_GPT (./train_gpt), TMPDIR
# Rule     The resident memory is looked at five times a second, beside the last step in log.jsonl: RssAnon, which has no pages of the
#          program's own code, read in as it gets there. After the first tenth of the steps a straight line is laid through these by least
#          squares: it may rise by less than a page (4096 bytes) per 1,000 steps. What is read back for the report, after the last
#          step, does not count.
# Prints   the rise in bytes per 1,000 steps, the least and the most memory after the first tenth
# Status   0: by the rule it is flat; 1: it is not, or the run failed
set -u
cd "$(dirname "$0")/.." || exit 1
train_gpt=${TRAIN_GPT:-./train_gpt} steps=${1:-20000}
[ -x "$train_gpt" ] || { echo "$train_gpt is missing: run make first"; exit 1; }
grep -q RssAnon /proc/self/status 2>/dev/null || { echo "skipped: no /proc here"; exit 0; }
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
log=$folder/run/log.jsonl

"$train_gpt" --recipe fp8 --layers 1 --heads 2 --channels 16 --context 16 --batch 2 --steps "$steps" --save-every $((steps / 40)) --ema 0.9 --shadow-every 16 \
    --eval-every $((steps / 20)) --eval-batches 1 --tokens 0 --out "$folder/run" >"$folder/said" 2>&1 &
pid=$!
while kill -0 $pid 2>/dev/null; do
    step=$(tail -n 2 "$log" 2>/dev/null | sed -n 's/^{"step":\([0-9]*\),"loss".*/\1/p' | tail -n 1)
    kib=$(sed -n 's/^RssAnon:[^0-9]*\([0-9]*\) kB/\1/p' /proc/$pid/status 2>/dev/null)
    [ -n "$kib" ] && echo "${step:-0} $((kib * 1024))"
    sleep 0.2
done >"$folder/samples"
wait $pid || { tail -n 1 "$folder/said"; exit 1; }
awk -v steps="$steps" '
    $1 > steps / 10 && $1 < steps { n++; x += $1; y += $2; xx += $1 * $1; xy += $1 * $2; if (!low || $2 < low) low = $2; if ($2 > high) high = $2 }
    END {
        if (n < 10) { print n + 0 " looks at its memory: take more STEPS"; exit 1 }
        rise = 1000 * (n * xy - x * y) / (n * xx - x * x)
        printf "%.0f bytes per 1,000 steps (less than 4096 expected), from %.0f to %.0f bytes in %d looks after the first tenth of %d steps\n", rise, low, high, n, steps
        exit rise >= 4096
    }' "$folder/samples"
