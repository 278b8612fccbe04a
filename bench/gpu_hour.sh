#!/usr/bin/env bash
# The first hour on a GPU, in stages that stand alone and take at most ten minutes each.
#
#   bench/gpu_hour.sh [--dry-run] STAGE…     a stage's name, or all
#
# What a stage prints is also in OUT/STAGE.log (OUT is build/gpu-hour unless it is set). --dry-run
# prints the commands. Without a GPU, or with SMOKE=1, all shapes are tiny: this shows that a stage
# runs. The exit code is 1 if a command failed, or if a benchmark missed its target.
set -uo pipefail
cd "$(dirname "$0")/.."

STAGES=(versions update ragged kernels optimizer rollout rollout-settings weights mixture buckets
  buckets-7b example trl update-7b)
PYTHON=${PYTHON:-.venv/bin/python}
OUT=${OUT:-build/gpu-hour}
STAGE_SECONDS=590
dry=0
failed=0

usage() { sed -n '2,9s/^# \{0,1\}//p' "$0"; echo "stages: ${STAGES[*]}"; }

# Run a command until the stage's time is over; log what it prints, and its exit code.
run() {
  local words began=$SECONDS left=$((stage_ends - SECONDS))
  printf -v words '%q ' "$@"
  echo "\$ ${words% }" | tee -a "$log"
  ((dry)) && return
  if ((left < 10)); then
    echo "no time is left in this stage" | tee -a "$log"
    failed=1
    return
  fi
  timeout --kill-after=10 "$left" "$@" 2>&1 | tee -a "$log"
  local code=${PIPESTATUS[0]}
  ((code)) && failed=1
  echo "exit code $code after $((SECONDS - began)) s" | tee -a "$log"
}

bench() { run "$PYTHON" -m "bench.$1" "${@:2}"; }
gpu_tests() { run "$PYTHON" -m pytest -q -n 0 -m gpu "$@"; }

# The first arguments on a GPU, or those after -- for a tiny model.
sized() {
  local words=() tiny=0 word
  for word in "$@"; do
    if [[ $word == -- ]]; then tiny=1; elif ((tiny == SMOKE)); then words+=("$word"); fi
  done
  shape=("${words[@]}")
}

versions() { bench sides.versions; }

update() {
  bench gpu
  bench gpu --liger
  bench gpu --checkpointing
  bench gpu --micro 2
  bench gpu --micro 2 --checkpointing
  bench gpu --micro 8 --liger
}

ragged() {
  bench gpu --ragged
  bench gpu --ragged --padded --micro 2
  bench gpu --ragged --micro 2
  bench gpu --ragged --tokens 16384 --liger
}

kernels() { gpu_tests tests/gpu/test_fused_log_probs.py tests/gpu/test_liger.py; }
optimizer() { gpu_tests tests/gpu/test_optimizer.py tests/gpu/test_sleep.py; }

rollout() {
  sized --model 1.5B --requests 128 256 512 -- --model tiny --requests 8 16 --tokens 8
  bench rollout_gpu "${shape[@]}" --output final_only
  bench rollout_gpu "${shape[@]}" --output delta --no-mismatch
}

rollout_settings() {
  sized --model 1.5B --requests 256 -- --model tiny --requests 16 --tokens 8
  bench rollout_gpu "${shape[@]}" --prefix-caching off --no-mismatch
  bench rollout_gpu "${shape[@]}" --head bf16
}

weights() { gpu_tests tests/gpu/test_weights.py -k "not mixture"; }
mixture() { gpu_tests tests/gpu/test_weights.py -k mixture; }

buckets() {
  sized --model 1.5B --megabytes 64 256 1024 2048 -- --model tiny --megabytes 1 2
  bench sync_gpu "${shape[@]}"
}

buckets_7b() {
  sized --model 7B --lora 8 --megabytes 256 1024 2048 -- --model tiny --lora 8 --megabytes 1
  bench sync_gpu "${shape[@]}"
}

example() {
  sized --model 0.5B -- --model tiny --prompts 2 --longest 8 --steps 2
  bench example_gpu "${shape[@]}" --side builtin
}

trl() {
  sized --model 0.5B -- --model tiny --prompts 2 --longest 8 --steps 2
  bench example_gpu "${shape[@]}" --side trl
}

update_7b() {
  bench gpu --model 7B --lora 16 --micro 2
  bench gpu --model 7B --lora 16 --tokens 16384
  bench gpu --model 7B --lora 16 --tokens 16384 --liger
}

[[ ${1:-} == --dry-run ]] && { dry=1; shift; }
(($#)) || { usage; exit 64; }
[[ $* == all ]] && set -- "${STAGES[@]}"
for stage in "$@"; do
  [[ " ${STAGES[*]} " == *" $stage "* ]] || { echo "no stage $stage"; usage; exit 64; }
done
SMOKE=${SMOKE:-$("$PYTHON" -c 'import torch; print(int(not torch.cuda.is_available()))')}
((dry)) || mkdir -p "$OUT"
for stage in "$@"; do
  log=/dev/null
  ((dry)) || { log=$OUT/$stage.log; : >"$log"; }
  stage_ends=$((SECONDS + STAGE_SECONDS))
  "${stage//-/_}"
done
exit "$failed"
