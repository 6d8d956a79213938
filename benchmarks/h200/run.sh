#!/usr/bin/env bash
# The runs behind docs/cuda.md, on one H200 and nothing else on it; each takes under ten minutes.
#   run.sh MODEL.gguf OUT checks|speed|kernels|page
# checks  equality of executors, service against bare replays, memory, floors
# speed   tokens a second: arms, several requests at once, transformers
# kernels every kernel of a pass checked and timed over ways to cut it
# page    docs/cuda.md and its plot, from what the two runs left in OUT
set -uo pipefail
model=$1 out=$2 stage=$3
python=${PYTHON:-python3}
day=${DAY:-$(date -u +%F)}
revision=${REVISION:-$(git rev-parse --short HEAD)}
seconds=${SECONDS_TO_RUN:-560}

measure() {
  "$python" -m benchmarks.h200.rounds --model "$model" --out "$out" --name "$day-rounds-$1" \
    --revision "$revision" --seconds "$seconds" --sections "$2"
}

case $stage in
  checks) measure checks equality,service,memory,floor ;;
  speed) measure speed speed,lanes,transformers ;;
  kernels) "$python" -m benchmarks.h200.kernels --out "$out" ;;
  page) "$python" -m benchmarks.h200.page "$out"/*-rounds-checks.json "$out"/*-rounds-speed.json ;;
  *) echo "unknown stage $stage" >&2; exit 2 ;;
esac
