#!/usr/bin/env bash
# The runs behind the shipped head and docs/mtp.md, stage by stage, over all GPUs of one machine.
#   full_run.sh MODEL.gguf WORK generate|trials|final
# WORK keeps conversations, runs and logs; every stage can be repeated and goes on where it stopped.
set -uo pipefail
model=$1 work=$2 stage=$3
python=${PYTHON:-python3}
gpus=${GPUS:-$(nvidia-smi -L | wc -l)}
mkdir -p "$work"

on_gpu() { CUDA_VISIBLE_DEVICES=$1 "$python" -m training "${@:2}"; }

generate() {
  on_gpu 0 generate --model "$model" --data "$work/heldout" --shards 1 --batch "${HELDOUT:-640}" \
    --length "${LENGTH:-512}" --seed 900000 || return 1
  for ((g = 0; g < gpus; g++)); do
    on_gpu $g generate --model "$model" --data "$work/data" --shards "${SHARDS:-40}" \
      --batch "${BATCH:-4096}" --length "${LENGTH:-512}" --worker $g --workers "$gpus" \
      --seconds "${SECONDS_TO_GENERATE:-190}" &
  done
  wait
}

# Each line: name, tokens seen, held-out texts, flags of `train` that differ from the defaults.
# Runs are compared with those of as many tokens and texts.
three="--taps 10,20,30" five="--taps 6,12,18,24,30" fast="--rate 6e-3 --steps 5"
trials=(
  "base 12000000 320"
  "taps 12000000 320 $three"
  "steps5 12000000 320 --steps 5"
  "overlap 12000000 320 --loss soft+overlap"
  "taps5 10000000 200 $five"
  "taps_layers2 10000000 200 $three --layers 2 --inner 960"
  "taps_rate3 10000000 200 $three --rate 3e-3"
  "taps_overlap 10000000 200 $three --loss soft+overlap"
  "taps_steps4 10000000 200 $three --rate 2e-3 --steps 4"
  "r6 9000000 150 $three $fast"
  "t5r6 9000000 150 $five $fast"
  "r10 9000000 150 $three --rate 1.2e-2 --steps 5"
  "o6 9000000 150 $three $fast --loss soft+overlap"
  "hard6 9000000 150 $three $fast --loss hard"
  "layers2r6 9000000 150 $three $fast --layers 2 --inner 960"
  "steps7r6 9000000 150 $three --rate 6e-3"
  "whole6 9000000 150 $three $fast --vocabulary 0"
)

trial() {
  local gpu=$1 name=$2 tokens=$3 texts=$4; shift 4
  on_gpu "$gpu" train --model "$model" --data "$work/data" --head "$work/$name" \
    --tokens "${TRIAL_TOKENS:-$tokens}" "$@" >"$work/$name.log" 2>&1 &&
  on_gpu "$gpu" evaluate --model "$model" --data "$work/heldout" --head "$work/$name" \
    --texts "$texts" >>"$work/$name.log" 2>&1
  echo "== $name: $*"; tail -n 7 "$work/$name.log"
}

run_trials() {
  for ((g = 0; g < gpus; g++)); do
    (for ((i = g; i < ${#trials[@]}; i += gpus)); do trial $g ${trials[i]}; done) &
  done
  wait
}

final() {
  torchrun=("$python" -m torch.distributed.run --standalone --nproc-per-node "$gpus")
  "${torchrun[@]}" -m training train --model "$model" --data "$work/data" --head "$work/final" \
    --tokens "${FINAL_TOKENS:-220000000}" --batch "${FINAL_BATCH:-48}" $five $fast || return 1
  on_gpu 0 evaluate --model "$model" --data "$work/heldout" --head "$work/final" --texts 640 &&
  on_gpu 0 export --model "$model" --head "$work/final" --out "$work/smollm2-135m-mtp.safetensors"
}

case $stage in
  generate) generate ;;
  trials) run_trials ;;
  final) final ;;
  *) echo "unknown stage $stage" >&2; exit 2 ;;
esac
