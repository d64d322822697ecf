# same_run.sh -- what check_kills.sh and check_disk_full.sh hold a run's folder against: two runs are the same if all of this is.

# everything OUT STEP: each tensor of the last checkpoint, what else its header says, the options and the logs, without clocks (nor
# sizes of log.jsonl, which has clocks in it, nor the hash over these) and without the name of OUT.
everything() {
    state=$1/step_$2/state.safetensors
    header=$(($(od -An -tu8 -N8 "$state"))) # its length in bytes
    head -c $((8 + header)) "$state" | tail -c +9 | sed -E 's/\\"(seconds|(decision|replay|look)_seconds|elapsed|log_bytes)\\":[^,}]*//g; s/\\"out\\":\\"[^"]*"//; s/"hash":"[0-9a-f]*"//; s/ *$//'
    tail -c +$((9 + header)) "$state"
    cat "$1/step_$2/model.safetensors" "$1/step_$2/config.json" "$1/decisions.jsonl" "$1/shadow.jsonl"
    sed -E 's/"(tokens_per_second|seconds)":[^,}]*//g; s/"cost":\{[^}]*\}//' "$1/log.jsonl"
    grep -v '"out":' "$1/config.json"
}

# whole_lines OUT: its logs are lines of JSON, but for what may be after the last newline. A brace that opens is the line's first, or in an object or a list.
whole_lines() {
    for log in log decisions shadow; do
        [ -s "$1/$log.jsonl" ] || continue
        bad=$(grep -Evn '^\{([^{]|[[,:]\{)*\}$' "$1/$log.jsonl")
        [ $? = 1 ] && [ -z "$(tail -c 1 "$1/$log.jsonl")" ] && continue # no line is bad, and a newline ends the last one
        [ "${bad%%:*}" = "$(($(wc -l <"$1/$log.jsonl") + 1))" ] && cut=$((cut + 1)) && continue
        echo "$1/$log.jsonl: line ${bad%%:*} is not JSON"
        return 1
    done
}
