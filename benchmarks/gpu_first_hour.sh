#!/usr/bin/env bash
# The first hour on a GPU, in under 40 minutes: correctness, host waits, throughput.
#
#   benchmarks/gpu_first_hour.sh [FOLDER]               write JSON and logs to runs/gpu-first-hour or FOLDER
#   benchmarks/gpu_first_hour.sh --self-test [FOLDER]   the same parts, tiny, on a CPU
#
# Each part has its own time limit; a failure does not stop the others. FOLDER/summary.json is updated
# after each part: passed, failed or out of time. PYTHON is the interpreter (default .venv/bin/python).
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

self_test=()
if [ "${1:-}" = "--self-test" ]; then
    self_test=(--self-test)
    shift
fi
folder=${1:-runs/gpu-first-hour}
python=${PYTHON:-.venv/bin/python}
mkdir -p "$folder"
: >"$folder/parts.jsonl"
export PYTHONPATH="$PWD" PYTORCH_ALLOC_CONF=${PYTORCH_ALLOC_CONF:-expandable_segments:True}

summarise() {
    "$python" - "$folder" <<'PROGRAM'
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
parts = [json.loads(line) for line in (folder / "parts.jsonl").read_text().splitlines()]
for part in parts:
    lines = (folder / f"{part['part']}.out").read_text().splitlines()
    found = [line for line in lines if line.startswith("{")]
    part["found"] = json.loads(found[-1]) if found else None
(folder / "summary.json").write_text(json.dumps(parts, indent=1) + "\n")
PROGRAM
}

part() { # NAME MINUTES COMMAND…
    local name=$1 minutes=$2 code=0 started=$SECONDS
    shift 2
    [ ${#self_test[@]} -eq 0 ] || minutes=15 # test machines are slow and busy
    echo "$name (at most $minutes minutes): $*" >&2
    timeout --kill-after=20 "${minutes}m" "$@" >"$folder/$name.out" 2>"$folder/$name.log" || code=$?
    local outcome=passed
    [ "$code" -eq 0 ] || outcome=failed
    [ "$code" -ne 124 ] || outcome="out of time"
    printf '{"part": "%s", "outcome": "%s", "exit_code": %d, "seconds": %d}\n' \
        "$name" "$outcome" "$code" "$((SECONDS - started))" >>"$folder/parts.jsonl"
    summarise
    echo "$name: $outcome after $((SECONDS - started)) s" >&2
}

checks=("$python" -m benchmarks.gpu.checks)
if [ ${#self_test[@]} -eq 0 ]; then
    part machine 1 nvidia-smi
    part tests 6 "$python" -m pytest -q -m gpu -p no:cacheprovider tests/model
fi
part syncs 2 "${checks[@]}" syncs "${self_test[@]}"
part parity 3 "${checks[@]}" parity "${self_test[@]}"
TORCH_LOGS=recompiles,graph_breaks part shapes 3 "${checks[@]}" shapes "${self_test[@]}"
part profile 3 "${checks[@]}" profile "${self_test[@]}"
part benchmark 21 "$python" benchmarks/training/gpu_training.py --minutes 20 --out "$folder/benchmark.json" \
    "${self_test[@]}"

cat "$folder/benchmark.out"
! grep -qv '"outcome": "passed"' "$folder/parts.jsonl"
