#!/usr/bin/env bash
# Everything that is measured on a GPU, in order of worth; docs/gpu/benchmarks.md says what each step does.
#
#     benchmarks/gpu.sh [OUT [STEP...]]
#
# OUT (default runs/gpu) gets a log for each step, its results as soon as there are any, and a stamp
# when it is done: called again, done steps are passed over and cut ones go on; with other variables
# it wants another OUT. No network, and no package but torch, transformers, safetensors, numpy,
# pydantic, pyyaml and rich; gguf and accelerate where TARGET_GGUF is to be converted, those of
# `pip install .[dev]` for `check`; flashspec and economize are measured where they are installed.
#
#     PYTHON       interpreter (python3)
#     DEVICE       cuda or cpu (cuda)
#     DATA         folder with dev/, train/ and seq2seq/ (data)
#     TARGET_GGUF  the default target's GGUF file, or parts of it in order, put into the cache
#                  folder (DRAFTPICK_CACHE); not needed where the target was fetched before
#     OTHER        another target, a name, a folder or a GGUF file, whose rounds, alone and beside
#                  others, are timed too (none)
#     OTHER_ARMS   its arms file (plain decoding and prompt lookup)
#     OTHER_NAMES  the arms of it that are timed beside plain decoding (max-gram)
#     DRAFTER      a trained recurrent drafter's folder (OUT/drafts/general/model)
#     ARMS         an arms file (the arms that ship and, where there is a DRAFTER, two over it)
#     QUICK        1: a rehearsal, everything tiny
set -u

STEPS=(check lossless rounds shared write train t5 speed routed floor collect)
declare -A SECONDS_OF=( # at most; a step's parts run in turn, those of lossless at once
  [check-tests]=420 [check-fused]=90
  [lossless-native]=360 [lossless-graphs]=360 [lossless-self]=360
  [rounds-default]=120 [rounds-other]=120 [rounds-other-int4]=120
  [rounds-default-0.7]=90 [rounds-default-0.7-likeliest]=90 [rounds-default-1]=90 [rounds-default-1-likeliest]=90
  [rounds-other-0.7]=120 [rounds-other-0.7-likeliest]=120 [rounds-other-1]=120 [rounds-other-1-likeliest]=120
  [shared-default]=90 [shared-other]=120
  [write]=330
  [train]=420
  [t5]=300
  [speed-default]=480 [speed-1b]=300 [speed-eager]=90
  [routed-train]=75 [routed-held]=75
  [floor-default]=75 [floor-1b]=60
  [collect]=90
)

ROOT=$(cd "$(dirname "$0")/.." && pwd)
OUT=${1:-runs/gpu}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] && STEPS=("$@")
mkdir -p "$OUT" || exit 1
OUT=$(cd "$OUT" && pwd)

# absolute PATH: the same from another folder; what is no path here stays, as a model's name does
absolute() { if [ -e "$1" ]; then echo "$(cd "$(dirname "$1")" && pwd)/$(basename "$1")"; else echo "$1"; fi; }

given="DEVICE=${DEVICE:-cuda} QUICK=${QUICK:-0} OTHER_NAMES=${OTHER_NAMES:-}"
for name in PYTHON DATA OTHER OTHER_ARMS DRAFTER ARMS; do
  if [ -n "${!name:-}" ]; then printf -v "$name" %s "$(absolute "${!name}")"; fi
  [ "$name" = PYTHON ] || given+=" $name=${!name:-}"
done
parts=
for part in ${TARGET_GGUF:-}; do parts+=" $(absolute "$part")"; done
if [ -e "$OUT/given" ] && [ "$(cat "$OUT/given")" != "$given$parts" ]; then
  printf '%s\n' "$OUT holds what was measured with other variables; name another folder" \
    "  then: $(cat "$OUT/given")" "  now:  $given$parts" >&2
  exit 1
fi
echo "$given$parts" >"$OUT/given"
PYTHON=${PYTHON:-python3}
DEVICE=${DEVICE:-cuda}
DATA=${DATA:-$ROOT/data}
DRAFTER=${DRAFTER:-$OUT/drafts/general/model}
QUICK=${QUICK:-0}
OTHER_NAMES=${OTHER_NAMES:-max-gram}
CACHE=${DRAFTPICK_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/draftpick}
BIG=$OUT/random-llama
export PYTHONPATH=$ROOT${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
export TOKENIZERS_PARALLELISM=false
cd "$ROOT" || exit 1

# minutes and counts: write, train, each specialist, t5, speed of the default target, of the big one
if [ "$QUICK" = 1 ]; then
  WRITE=0.5 TRAIN=0.2 SPECIALISTS=0.05 T5=0.1 SPEED=0.3 SPEED_BIG=0.2
  LIMIT=1 COLLECTED=1 NEW=8 ROWS=8 T5_SIZE="--size small --vocab 1000 --answered 16"
  BIG_SHAPE="--hidden 256 --layers 2 --heads 4 --kv-heads 2 --mlp 512"
  SMALL_TRAINING="--width 128 --vocab-size 512 --batch-tokens 2048"
else
  WRITE=4.5 TRAIN=4.0 SPECIALISTS=0.3 T5=3.8 SPEED=4.0 SPEED_BIG=2.0
  LIMIT=10 COLLECTED=40 NEW=96 ROWS=1536 T5_SIZE="--size large --answered 29000"
  BIG_SHAPE="" SMALL_TRAINING=""
fi
if [ "$DEVICE" = cpu ]; then
  PLAIN=native SPED="bfloat16 int4" EAGER="bfloat16:native int8:native"
  FLOORS="bfloat16 int8 int4" COMPILE=--no-compile
else
  PLAIN="graphs fused"
  SPED="bfloat16:fused bfloat16:graphs int8:fused int4:fused"
  EAGER="bfloat16:native int8:native int4:native"
  FLOORS="bfloat16:fused bfloat16:graphs bfloat16:native int8:fused int8:graphs int4:fused int4:graphs"
  COMPILE=--compile
fi

# run NAME COMMAND...: within the step's seconds, unless it is done
run() {
  local name=$1 started=$SECONDS rc
  shift
  if [ -e "$OUT/$name.done" ]; then
    echo "$name: done before"
    return 0
  fi
  echo "== $(date -u +%H:%M:%S) $*" >>"$OUT/$name.log"
  timeout -k 10 "${SECONDS_OF[$name]}" "$@" >>"$OUT/$name.log" 2>&1 </dev/null
  rc=$?
  if [ $rc -eq 0 ]; then
    touch "$OUT/$name.done"
    echo "$name: $((SECONDS - started)) s"
  elif [ $rc -eq 124 ] || [ $rc -eq 137 ]; then
    echo "$name: cut after $((SECONDS - started)) s"
  else
    echo "$name: failed ($rc) after $((SECONDS - started)) s: $(tail -n 1 "$OUT/$name.log" | cut -c 1-200)"
  fi
  return $rc
}

# skip NAME WHY
skip() { echo "$1: left out, $2"; }

place_target() {
  [ -n "${TARGET_GGUF:-}" ] || return 0
  local name
  name=$("$PYTHON" -c 'from decoders.zoo.catalogue import TARGET, WHEELS
print(WHEELS[TARGET].member.rpartition("/")[2])') || exit 1
  mkdir -p "$CACHE" || exit 1
  # shellcheck disable=SC2086  # parts, in order
  [ -e "$CACHE/$name" ] || { cat $parts >"$CACHE/.$name" && mv "$CACHE/.$name" "$CACHE/$name"; }
}

# the arms that ship and, once there is a drafter over the target's states, two with it
arms() {
  if [ -n "${ARMS:-}" ]; then
    echo "$ARMS"
  elif [ -e "$DRAFTER/recurrent.safetensors" ] && ! grep -q "^  recurrent:" decoders/arms/arms.yaml; then
    {
      cat decoders/arms/arms.yaml
      echo "  recurrent: {kind: recurrent, drafter: $DRAFTER, length: {kind: adaptive, k: 6}}"
      echo "  hybrid:"
      echo "    kind: horizontal"
      echo "    parts:"
      echo "      - {kind: max_gram, length: {k: 6}, stop_below: 0.3}"
      echo "      - {kind: recurrent, drafter: $DRAFTER, length: {k: 4}}"
    } >"$OUT/arms.yaml"
    echo "$OUT/arms.yaml"
  else
    echo decoders/arms/arms.yaml
  fi
}

sped() { # the arms whose speed is measured
  if grep -q "^  recurrent:" "$1"; then echo max-gram,draft-general,exit-2,recurrent,hybrid; else echo max-gram,draft-general,exit-2; fi
}

big() { # a Llama of 1.07 billion random weights
  # shellcheck disable=SC2086
  [ -e "$BIG/config.json" ] || "$PYTHON" benchmarks/random_llama.py "$BIG" --device "$DEVICE" $BIG_SHAPE >"$OUT/random-llama.log" 2>&1
}

check() {
  local marks="not engines"
  [ "$DEVICE" = cpu ] && marks="not engines and not slow" # Triton's interpreter takes minutes
  run check-tests "$PYTHON" -m pytest -q -p no:cacheprovider --continue-on-collection-errors \
    tests/decoders tests/test_t5_family.py -m "$marks" \
    -k "(cuda or gpu or row_kernels or test_fused) and not compile"
  if [ -e benchmarks/fused_check.py ] && [ "$DEVICE" != cpu ]; then
    run check-fused "$PYTHON" benchmarks/fused_check.py --out "$OUT/fused_check.json"
  else
    skip check-fused "for a GPU"
  fi
}

lossless() { # all at once: each mostly waits for its own launches
  local config options
  config=$(arms)
  options="--queries $DATA/dev --limit $LIMIT --config $config --device $DEVICE --minutes 5.3"
  # shellcheck disable=SC2086
  run lossless-native "$PYTHON" benchmarks/lossless.py $options --max-new-tokens $((NEW < 32 ? NEW : 32)) \
    --backend native --batch 20 --out "$OUT/lossless-native.jsonl" &
  if [ "$DEVICE" != cpu ]; then
    # shellcheck disable=SC2086
    run lossless-graphs "$PYTHON" benchmarks/lossless.py $options --max-new-tokens $((NEW < 32 ? NEW : 32)) \
      --backend graphs --batch 20 --out "$OUT/lossless-graphs.jsonl" &
  fi
  # shellcheck disable=SC2086
  run lossless-self "$PYTHON" benchmarks/lossless.py $options --max-new-tokens $((NEW < 48 ? NEW : 48)) \
    --backend $PLAIN --against self --dtype bfloat16 int8 int4 --out "$OUT/lossless-self.jsonl" &
  wait
}

other_arms() {
  if [ -z "${OTHER_ARMS:-}" ]; then
    printf 'arms:\n  autoregressive: {kind: autoregressive}\n  max-gram: {kind: max_gram, length: {k: 16}, by_cost: true}\n' >"$OUT/other.yaml"
  fi
  echo "${OTHER_ARMS:-$OUT/other.yaml}"
}

rounds() { # ahead of the host and by the ordinary loop, in turn
  local config
  config=$(arms)
  timed_rounds default --config "$config" --arms "$(sped "$config")"
  if [ -n "${OTHER:-}" ]; then
    timed_rounds other --config "$(other_arms)" --arms "$OTHER_NAMES" --target "$OTHER"
    rounds_of other-int4 --config "$(other_arms)" --arms "$OTHER_NAMES" --target "$OTHER" --dtype int4
  fi
}

# timed_rounds NAME OPTIONS...: greedy, and at two temperatures by drafts that go by the answer's
# clocks and by the likeliest tokens
timed_rounds() {
  local name=$1 heat
  shift
  rounds_of "$name" "$@"
  for heat in 0.7 1; do
    rounds_of "$name-$heat" "$@" --temperature $heat
    rounds_of "$name-$heat-likeliest" "$@" --temperature $heat --likeliest
  done
}

rounds_of() {
  local name=rounds-$1
  shift
  run "$name" "$PYTHON" benchmarks/rounds.py --queries "$DATA/dev" --limit 1 --repeats 2 \
    --max-new-tokens $NEW --device "$DEVICE" "$@" --out "$OUT/$name.json"
}

shared() { # 1 to 64 answers at once
  local config options clients="1 8 32 64" few=4
  config=$(arms)
  [ "$QUICK" = 1 ] && clients="1 2" few=1
  options="--queries $DATA/dev --limit $few --least 1 --repeats 2 --clients $clients --temperature 0 1"
  # shellcheck disable=SC2086
  run shared-default "$PYTHON" benchmarks/load.py $options --max-new-tokens $((NEW < 64 ? NEW : 64)) \
    --context 4096 --dtype bfloat16 --config "$config" --arms autoregressive max-gram \
    --out "$OUT/shared-default.json"
  if [ -n "${OTHER:-}" ]; then
    # shellcheck disable=SC2086
    run shared-other "$PYTHON" benchmarks/load.py $options --max-new-tokens $((NEW < 64 ? NEW : 64)) \
      --context 4096 --dtype bfloat16 --config "$(other_arms)" --arms autoregressive ${OTHER_NAMES//,/ } \
      --target "$OTHER" --out "$OUT/shared-other.json"
  fi
}

write() {
  [ -e benchmarks/write_tokens.py ] || { skip write "there is no benchmarks/write_tokens.py"; return; }
  local queries=$DATA/train more=""
  if [ "$QUICK" = 1 ]; then queries=$DATA/dev more="--max-new-tokens 16 --max-asking 16 --max-prompt 1200 --tokens 2000 --own 0 --held-out-percent 30"; fi
  # shellcheck disable=SC2086
  run write "$PYTHON" benchmarks/write_tokens.py --queries "$queries" --out "$OUT/tokens" \
    --minutes $WRITE --rows $ROWS --device "$DEVICE" $more
}

train() {
  [ -e benchmarks/train_recurrent.py ] || { skip train "there is no benchmarks/train_recurrent.py"; return; }
  compgen -G "$OUT/tokens/*.npz" >/dev/null || { skip train "there are no tokens in $OUT/tokens"; return; }
  # shellcheck disable=SC2086
  run train "$PYTHON" benchmarks/train_recurrent.py --tokens "$OUT"/tokens/*.npz --out "$OUT/drafts" \
    --minutes $TRAIN --specialists $SPECIALISTS --device "$DEVICE" $SMALL_TRAINING
}

t5() {
  # shellcheck disable=SC2086
  run t5 "$PYTHON" benchmarks/train_t5_family.py --data "$DATA/seq2seq" --out "$OUT/t5" \
    --minutes $T5 --device "$DEVICE" $T5_SIZE
}

speed() {
  local config prompts=2
  config=$(arms)
  [ "$QUICK" = 1 ] && prompts=1
  # shellcheck disable=SC2086
  run speed-default "$PYTHON" benchmarks/decode.py --queries "$DATA/dev" --limit $prompts \
    --max-new-tokens $NEW --repeats 3 --minutes $SPEED --dtype $SPED --config "$config" \
    --arms "$(sped "$config")" --device "$DEVICE" $COMPILE --resume --out "$OUT/speed-default.json"
  big
  # shellcheck disable=SC2086
  run speed-1b "$PYTHON" benchmarks/decode.py --target "$BIG" --queries "$DATA/dev" --limit 1 \
    --max-new-tokens $NEW --repeats 3 --minutes $SPEED_BIG --dtype $SPED --arms max-gram \
    --device "$DEVICE" $COMPILE --exit-layer 0 --note "(random weights: timing only)" --resume \
    --out "$OUT/speed-1b.json"
  # shellcheck disable=SC2086
  run speed-eager "$PYTHON" benchmarks/decode.py --queries "$DATA/dev" --limit 1 \
    --max-new-tokens $NEW --repeats 1 --minutes 0.7 --dtype $EAGER --arms max-gram \
    --device "$DEVICE" --peers none --resume --out "$OUT/speed-eager.json"
}

routed() { # every arm timed on queries to learn from, and on others to judge by
  local config other=$DATA/specbench/question.jsonl
  config=$(arms)
  [ -e "$other" ] || other=$DATA/train
  run routed-train "$PYTHON" benchmarks/routed.py measure --queries "$DATA/dev" --config "$config" \
    --arms "$(sped "$config")" --limit $LIMIT --max-new-tokens $NEW --device "$DEVICE" --minutes 1 \
    --out "$OUT/timed-train"
  run routed-held "$PYTHON" benchmarks/routed.py measure --queries "$other" --config "$config" \
    --arms "$(sped "$config")" --limit $LIMIT --max-new-tokens $NEW --device "$DEVICE" --minutes 1 \
    --out "$OUT/timed-held"
  "$PYTHON" benchmarks/routed.py judge --train "$OUT/timed-train" --held-out "$OUT/timed-held" \
    --out "$OUT/routed.json" >"$OUT/routed.log" 2>&1 || skip routed "see $OUT/routed.log"
}

floor() {
  local config
  config=$(arms)
  # shellcheck disable=SC2086
  run floor-default "$PYTHON" benchmarks/floor.py --dtype $FLOORS --device "$DEVICE" --config "$config" \
    --arms "$(sped "$config")" --max-new-tokens $NEW --out "$OUT/floor-default.json"
  big
  # shellcheck disable=SC2086
  run floor-1b "$PYTHON" benchmarks/floor.py --target "$BIG" --dtype $FLOORS --device "$DEVICE" \
    --arms max-gram --max-new-tokens $NEW --note "(random weights)" --out "$OUT/floor-1b.json"
}

collect() {
  run collect "$PYTHON" benchmarks/collect_speed.py --queries "$DATA/dev" --limit $COLLECTED \
    --max-new-tokens $((NEW < 64 ? NEW : 64)) --config "$(arms)" --device "$DEVICE" --minutes 1 \
    --out "$OUT/collect.json"
}

# what is small enough to be taken along, models in parts of 15 MiB
pack() {
  rm -f "$OUT"/models.tar.gz.*
  (cd "$OUT" && find . -maxdepth 4 -size -4M \( -name '*.json' -o -name '*.jsonl' -o -name '*.log' -o -name '*.done' -o -name given \) \
    -not -path './random-llama/*' -not -path './t5/*' -not -path './tokens/*' -print0 |
    tar -czf figures.tar.gz --null -T -)
  local kept=() path
  for path in "$OUT"/drafts/*/model "$OUT/t5"; do
    if [ -e "$path" ]; then kept+=("${path#"$OUT"/}"); fi
  done
  if [ ${#kept[@]} -gt 0 ]; then
    tar -C "$OUT" -cf - --exclude '*.pt' --exclude '*.tmp' "${kept[@]}" | gzip -1 |
      split -b 15m - "$OUT/models.tar.gz."
  fi
  ls -l "$OUT"/figures.tar.gz "$OUT"/models.tar.gz.* 2>/dev/null | awk '{print $NF, $5, "bytes"}'
}

place_target
for step in "${STEPS[@]}"; do
  case $step in
    check | lossless | rounds | shared | write | train | t5 | speed | routed | floor | collect) "$step" ;;
    *) echo "no such step: $step; there are check lossless rounds shared write train t5 speed routed floor collect" ;;
  esac
done
"$PYTHON" benchmarks/gpu_summary.py "$OUT"
pack
