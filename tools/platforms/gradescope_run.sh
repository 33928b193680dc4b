#!/usr/bin/env bash
# Gradescope calls this for each submission. Its folders lie below /autograder; a test has them elsewhere.
set -euo pipefail
root="${AUTOGRADER_ROOT:-/autograder}"
cd "$root/source"
mkdir -p "$root/results"
export PYTHONPATH="$root/source/course"
exec "${COURSE_PYTHON:-.venv/bin/python}" -m course_lib.grading.marks.alone "$(cat assignment)" "$root/submission" \
    --course course --gradescope --to "$root/results/results.json"
