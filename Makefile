# `make lab` opens the course and `make test` passes every test; each makes the environment first, once, in .venv.
# Needs Python 3.11 or newer and nothing else; name one with PYTHON=python3.12. Written for GNU make 3.81 (macOS) and newer.

PYTHON ?= python3
VENV := .venv

ifeq ($(OS),Windows_NT)
BIN := $(VENV)/Scripts
else
BIN := $(VENV)/bin
# So that torchrun in a notebook cell or a terminal of JupyterLab is the environment's own.
WITH_PATH := PATH="$(CURDIR)/$(BIN):$$PATH"
endif

READY := $(VENV)/.ready
FIRST := notebooks/00_start_here.ipynb

.PHONY: help lab teach grade gradescope classroom50 handout slides site doctor check test sweep run-again other-text pretend lint executed notebooks showing exercises mistakes text write-back bench size lock clean

help:
	@echo "make lab                   open the course in JupyterLab, on your own copies in workspace/"
	@echo "make lab FRESH=1           the same, with new copies (asks first)"
	@echo "make lab FLAGS=...         the same, with options of JupyterLab's, such as --no-browser"
	@echo "make teach                 JupyterLab in the course's folder, with nbgrader's menus"
	@echo "make grade NAME=... [JOBS=4]  grade a class: what is open, or after an interruption the rest; marks/NAME.csv"
	@echo "make gradescope NAME=...   the grader of a chapter as Gradescope takes it: dist/gradescope_NAME.zip"
	@echo "make classroom50 NAME=...  the same for Classroom 50"
	@echo "make handout DIR=...       a copy for students: no solutions, judges or wrong answers, and no history"
	@echo "make slides [NAME=...]     the pictures and predictions of notebooks as slides: dist/slides/"
	@echo "make site                  the course as static pages: build/site/, for any static host"
	@echo "make doctor                check the machine, and say what to do"
	@echo "make check [NB=...]        while you work: lint, layers, models and pictures, one notebook"
	@echo "make test                  every test: lint, tests, notebooks, browser"
	@echo "make sweep                 what make test tries a part of, in its whole breadth: every seed, chapter and machine"
	@echo "make run-again             what failed in the last run of tests, alone"
	@echo "make other-text [NB=...]   notebooks on another text than the one they are recorded on, outputs compared"
	@echo "make pretend [MODE=nccl]   the whole course on pretended GPUs, in one mode or in all"
	@echo "make bench [NAME=...]      ours against PyTorch's own, side by side"
	@echo "make lint                  ruff and codespell only"
	@echo "make size [COMMIT=...]     lines by package, this tree against main or a commit"
	@echo "make executed [NB=...]     run notebooks, and compare with what they are stored with; [JOBS=2] [TEXT=FILE]"
	@echo "make notebooks [NB=...]    run notebooks from a fresh kernel and store normalised outputs"
	@echo "make showing [FILE=...]    which notebooks show a source file (default: those changed since the last commit)"
	@echo "make exercises             exercises/ from solutions/, by nbgrader"
	@echo "make mistakes [NAME=...]   record hints and what wrong answers give, of chapters such as 02_collectives"
	@echo "make text NB=...           a notebook as a Python text under build/text/, to edit"
	@echo "make write-back NB=...     the edited text into the notebook again"
	@echo "make lock [FLAGS=...]      write requirements.lock again (needs uv)"
	@echo "make clean                 remove .venv, build/ and caches"

$(READY): requirements.lock pyproject.toml
	@command -v "$(PYTHON)" >/dev/null 2>&1 || { \
	  echo "There is no '$(PYTHON)' here. Install Python 3.11 or newer, or name one: make test PYTHON=/path/to/python" >&2; \
	  exit 1; }
	@"$(PYTHON)" tools/check_python.py
	@echo "Making the environment in $(VENV): a few minutes, once."
	"$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -m pip install -r requirements.lock
	$(BIN)/python -m pip install --no-deps --no-build-isolation --editable .
	@touch $(READY)

# Readers work on copies without outputs, so that a prediction comes before its answer and a pull never meets an edit.
lab: $(READY)
	@$(WITH_PATH) $(BIN)/python -m tools.lab $(if $(FRESH),--fresh) $(if $(FLAGS),-- $(FLAGS))

teach: $(READY)
	@$(WITH_PATH) $(BIN)/python -m tools.lab --teach $(if $(FLAGS),-- $(FLAGS))

# A class, unattended: course_lib/grading/marks/batch.py. OPTIONS go to nbgrader.
grade: $(READY)
	@$(WITH_PATH) $(BIN)/python -m course_lib.grading.marks.batch $(NAME) --jobs $(or $(JOBS),1) \
	  $(if $(AGAIN),--again) $(if $(OPTIONS),-- $(OPTIONS))

gradescope classroom50: $(READY)
	@$(BIN)/python -m tools.platforms $@ $(NAME)

handout: $(READY)
	@$(BIN)/python -m tools.handout $(DIR)

slides: $(READY)
	@$(BIN)/python -m tools.slides $(NAME)

# Pages for any static host, from the recorded outputs. FLAGS=--linkcheck looks whether outside links answer.
site: $(READY)
	@$(BIN)/python -m tools.site $(FLAGS)

doctor: $(READY)
	@$(WITH_PATH) $(BIN)/python -c "from course_lib.runtime import doctor; print(doctor())"

# Tests, which may compare no times, run three files at a time, the longest first (tests/order.py): one starts up to 8
# ranks of its own. A second thread in one of these processes would only wait for a core, and use up another one while
# it waits. Notebooks claim what their readers will measure, so they run after them, one after the other, as a reader's
# does; with JOBS=2 two side by side, and headlines about times (tools/cells.py) are told and not judged.
PYTEST := $(WITH_PATH) $(BIN)/python -m pytest
TESTS := OMP_NUM_THREADS=1 $(PYTEST) --numprocesses=3 --dist=loadfile --no-loadscope-reorder
# What a small change breaks first, and no ranks to wait for but a notebook's.
CHECKED := tests/test_layers.py tests/test_doctests.py tests/test_environment.py tests/test_pages.py tests/facts \
	tests/pictures tests/costs tests/plots tests/widgets

check: lint
	$(TESTS) $(CHECKED)
	@$(MAKE) --no-print-directory executed NB="$(or $(NB),$(FIRST))"

# Both, whatever the first one says.
test: lint
	@status=0; \
	$(TESTS) --junitxml=build/tests.xml --durations=30 tests || status=$$?; \
	touched=$$($(BIN)/python -m tools.notebooks touched); \
	{ $(WITH_PATH) $(BIN)/python -m tools.run_notebooks $$touched && \
	  $(PYTEST) --junitxml=build/notebooks.xml $$touched; } || status=$$?; \
	exit $$status

# The tests that are marked sweep, with all their values: see tests/sweep.py.
sweep: $(READY)
	$(TESTS) --sweep -m sweep -o faulthandler_timeout=0 --junitxml=build/sweep.xml --durations=30 tests

# What failed in the last run, alone: see tools/run_again.py.
run-again: $(READY)
	$(WITH_PATH) $(BIN)/python -m tools.run_again

# No printed claim may depend on the text.
OTHER_TEXT := build/other_text.txt
other-text: $(READY)
	$(BIN)/python -m tools.other_text $(OTHER_TEXT)
	@$(MAKE) --no-print-directory executed NB="$(NB)" TEXT=$(OTHER_TEXT) JOBS=2

# Needs a C++ compiler. Fails where something fails that tests/pretend/exceptions.py does not explain.
pretend: $(READY)
	@set -e; for mode in $(or $(MODE),nccl gloo-cuda any laptop); do \
	  $(BIN)/python -m tests.pretend --mode $$mode; done

lint: $(READY)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m codespell_lib

# Once, for all who ask what notebooks print: build/executed/.
executed: $(READY)
	$(WITH_PATH) $(BIN)/python -m tools.run_notebooks $(NB) --jobs $(or $(JOBS),1) $(if $(TEXT),--text $(TEXT))
	$(PYTEST) --junitxml=build/notebooks.xml $(or $(NB),notebooks)

notebooks: $(READY)
	$(WITH_PATH) $(BIN)/python -m tools.notebooks run $(NB)

showing: $(READY)
	@$(BIN)/python -m tools.notebooks showing $(FILE)

exercises: $(READY)
	$(BIN)/python -m tools.exercises

mistakes: $(READY)
	$(BIN)/python -m tools.mistakes $(NAME)

# py:percent with magics as they are: jupytext's own py:percent comments them out, and on the way back takes for one of
# them, in prose too, a line such as #!/bin/bash, which then loses its #.
AS_TEXT = build/text/$(subst /,_,$(NB:.ipynb=.py))
text: $(READY)
	@test ! -e $(AS_TEXT) || { echo "$(AS_TEXT) is there: make write-back NB=$(NB), or delete it" >&2; exit 1; }
	@mkdir -p $(dir $(AS_TEXT))
	@$(BIN)/python -m jupytext --quiet --to py:hydrogen --output $(AS_TEXT) $(NB)
	@echo "edit $(AS_TEXT), then: make write-back NB=$(NB) && make notebooks NB=$(NB)"

write-back: $(READY)
	@test -e $(AS_TEXT) || { echo "there is no $(AS_TEXT): make text NB=$(NB) writes it" >&2; exit 1; }
	@$(BIN)/python -m jupytext --quiet --update --to ipynb --output $(NB) $(AS_TEXT)
	@$(BIN)/python -m tools.notebooks tidy $(NB)
	@rm $(AS_TEXT)

bench: $(READY)
	$(BIN)/python -m benchmarks $(NAME)

size:
	@"$(PYTHON)" tools/size.py $(COMMIT)

lock:
	"$(PYTHON)" tools/lock.py $(FLAGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
