#!/usr/bin/env bash
# The runs behind the shipped head, stage by stage, over all GPUs of one machine.
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
      --seconds "${SECONDS_TO_GENERATE:-180}" &
  done
  wait
}

# name, then flags of `train` that differ from the defaults
trials=(
  "base"
  "taps --taps 10,20,30"
  "steps5 --steps 5"
  "overlap --loss soft+overlap"
  "heat07 --heat 0.7"
  "layers2 --layers 2 --inner 960"
  "rate2e3 --rate 2e-3"
  "wide --inner 2304"
  "hard --loss hard"
  "whole --vocabulary 0 --batch 32"
  "vocab16k --vocabulary 16384"
)

trial() {
  local gpu=$1 name=$2; shift 2
  on_gpu "$gpu" train --model "$model" --data "$work/data" --head "$work/$name" \
    --tokens "${TRIAL_TOKENS:-12000000}" "$@" >"$work/$name.log" 2>&1 &&
  on_gpu "$gpu" evaluate --model "$model" --data "$work/heldout" --head "$work/$name" \
    --texts "${TEXTS:-320}" >>"$work/$name.log" 2>&1
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
    --tokens "${FINAL_TOKENS:-200000000}" ${FINAL_FLAGS:-} || return 1
  on_gpu 0 evaluate --model "$model" --data "$work/heldout" --head "$work/final" --texts 640 &&
  on_gpu 0 export --model "$model" --head "$work/final" --out "$work/smollm2-135m-mtp.safetensors"
}

case $stage in
  generate) generate ;;
  trials) run_trials ;;
  final) final ;;
  *) echo "unknown stage $stage" >&2; exit 2 ;;
esac
