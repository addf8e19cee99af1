#!/usr/bin/env bash
# The study on this machine's GPU: makes a virtual environment, installs roofprobe and runs it.
#
#     bash harness/launch/study.sh                              # results in runs/study
#     OUT=runs/v100 NCU=no bash harness/launch/study.sh         # another folder, without ncu
#     RUN=no bash harness/launch/study.sh                       # set up only, as on a login node
#
# Needs Python 3.11 or newer, a C++ compiler, an NVIDIA driver and permission to read counters; ncu
# on the PATH for the comparison. Run it again to go on where it stopped.
set -euo pipefail

OUT=${OUT:-runs/study}       # folder of the results
BATCH=${BATCH:-256}          # images of a step
NCU=${NCU:-yes}              # yes: Nsight Compute runs too, where it is installed
RUN=${RUN:-yes}              # no: set up and stop
PYTHON=${PYTHON:-python3}    # the Python that the environment is made with
VENV=${VENV:-build/study}     # the environment
TORCH_INDEX=${TORCH_INDEX:-} # pip's index for PyTorch; empty for the default. PyTorch's CUDA 12.8
                             # and newer builds leave out Volta: for a V100 name one for CUDA 12.6,
                             # https://download.pytorch.org/whl/cu126

cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if [[ ! -e $VENV/.ready ]]; then
  "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    { echo "roofprobe needs Python 3.11 or newer: set PYTHON" >&2; exit 1; }
  command -v c++ > /dev/null || { echo "roofprobe needs a C++ compiler (c++)" >&2; exit 1; }
  "$PYTHON" -m venv "$VENV"
  if [[ -n $TORCH_INDEX ]]; then
    "$VENV/bin/pip" install --quiet torch torchvision --index-url "$TORCH_INDEX"
  fi
  "$VENV/bin/pip" install --quiet .
  touch "$VENV/.ready"
fi
[[ $RUN == yes ]] || exit 0

options=(--batch-size "$BATCH")
[[ $NCU == yes ]] || options+=(--no-ncu)
exec "$VENV/bin/python" harness/study.py "$OUT" "${options[@]}"
