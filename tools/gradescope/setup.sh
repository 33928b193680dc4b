#!/usr/bin/env bash
# Gradescope calls this once, when it makes the autograder's image: everything that grading needs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# Namespaces are usually forbidden in there; `ss` of iproute2 counts the bytes that ranks
# send, and libseccomp filters what they ask of the system.
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends util-linux iproute2 \
    libseccomp2

find_python() {
    local name
    for name in python3.14 python3.13 python3.12 python3.11 python3; do
        if command -v "$name" >/dev/null && "$name" -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))'; then
            echo "$name"
            return
        fi
    done
}
python=$(find_python)
if [ -z "$python" ]; then
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3.11 python3.11-venv
    python=python3.11
fi
"$python" -m venv .venv
# The CPU build of PyTorch is a tenth of the other one, and all that grading uses.
export PIP_EXTRA_INDEX_URL="${PIP_EXTRA_INDEX_URL:-https://download.pytorch.org/whl/cpu}"
.venv/bin/python -m pip install --quiet --constraint requirements.lock --requirement requirements.txt
