#!/usr/bin/env bash
# From a fresh clone to a trained model: sets up, makes a tiny random checkpoint, trains it on four ranks.
#   launch/quickstart.sh [OVERRIDE...]      e.g. launch/quickstart.sh seed=1 name=second
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash launch/setup.sh

model=models/tiny-random
if [[ ! -d "$model" ]]; then
    .venv/bin/python -m grpo_mega init-model --out "$model" --initializer-range 0.1
fi
name=quickstart
if [[ -e "runs/$name" ]]; then name="quickstart-$(date +%Y%m%d-%H%M%S)"; fi

export OMP_NUM_THREADS=1   # torchrun's own default, without its warning
exec .venv/bin/torchrun --standalone --nproc-per-node 4 -m grpo_mega train --config configs/quickstart.yaml "name=$name" "$@"
