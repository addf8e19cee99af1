#!/usr/bin/env bash
# Everything that only a GPU can show, part by part: its results go to a folder, a failed part costs
# nothing but itself.
#
#     bash harness/on_gpu.sh OUT_DIR [PART ...]     # all parts: about 20 minutes on an H200
#
# Parts: doctor ceilings tests cost verify study models layers gpm soak. TESTS="FILE ..." picks tests.
set -uo pipefail
cd "$(dirname "$0")/.."

OUT=${1:?folder for the results}
shift
PARTS=${*:-doctor ceilings tests cost verify study models layers gpm soak}
PYTHON=${PYTHON:-python3}
mkdir -p "$OUT"

part() { # NAME SECONDS COMMAND...: runs with a time limit, output to OUT/NAME.txt
  local name=$1 limit=$2 started=$SECONDS
  shift 2
  timeout --kill-after 10 "$limit" "$@" > "$OUT/$name.txt" 2>&1
  echo "$name: status $?, $((SECONDS - started)) s"
}

train() { # NAME ARGUMENTS...
  local name=$1
  shift
  part "$name" 400 "$PYTHON" -m roofprobe.train --dummy --out "$OUT/$name" "$@"
}

for wanted in $PARTS; do
  case $wanted in
    doctor) part doctor 300 "$PYTHON" -m roofprobe doctor ;;
    ceilings) part ceilings 120 "$PYTHON" -m roofprobe ceilings --fresh ;;
    tests)
      for file in ${TESTS:-tests/gpu/test_*.py}; do
        name=$(basename "$file" .py)
        part "$name" 400 "$PYTHON" -m pytest -q -p no:cacheprovider --durations 5 "$file"
        tail -1 "$OUT/$name.txt"
      done
      ;;
    cost) part cost 260 "$PYTHON" harness/cost.py "$OUT/cost.json" ;;
    verify)
      train verify-resnet18-b64 -a resnet18 -b 64 --verify-ncu
      train verify-alexnet-b64 -a alexnet -b 64 --lr 0.01 --verify-ncu
      ;;
    study) part study 600 "$PYTHON" harness/study.py "$OUT" ;;
    models)
      train resnet18-b256-bf16-cl -a resnet18 --amp bf16 --channels-last
      train resnet50-b256 -a resnet50
      train vit_b_16-b128 -a vit_b_16 -b 128
      train resnet18-b256-compiled -a resnet18 --compile
      ;;
    layers)
      for model in resnet18 resnet50 vit_b_16; do
        train "$model-layers" -a "$model" -b 64 --by layer
      done
      ;;
    gpm)
      part gpm-windows 90 "$PYTHON" harness/gpm_windows.py "$OUT/gpm_windows.json"
      train gpm-resnet18-b64 -a resnet18 -b 64 --backend gpm
      train gpm-resnet18-b256 -a resnet18 --backend gpm
      ;;
    soak) part soak 600 "$PYTHON" harness/soak.py "$OUT/soak.json" ;;
    *) echo "no part is called $wanted; see the head of $0" >&2 && exit 2 ;;
  esac
done
