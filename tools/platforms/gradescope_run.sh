#!/usr/bin/env bash
# Gradescope calls this for each submission. Its folders lie below /autograder; a test has them elsewhere.
set -euo pipefail
root="${AUTOGRADER_ROOT:-/autograder}"
cd "$root/source"
mkdir -p "$root/results"
# Where there are no namespaces student code runs as another user, who may read what everybody may.
# Whatever stays open all the same is named in the result.
chmod -R go-rwx "$root/results" "$root/submission" course/solutions course/.grading_key || true
export PYTHONPATH="$root/source/course"
exec "${COURSE_PYTHON:-.venv/bin/python}" -m course_lib.grading.marks.alone "$(cat assignment)" "$root/submission" \
    --course course --gradescope --to "$root/results/results.json"
