# `make lab` opens the course and `make test` tests it; each makes its environment first, once, in .venv, from one lock.
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

FIRST := notebooks/00_start_here.ipynb

.PHONY: help authors lab teach grade gradescope handout slides site doctor check test sweep bench \
	ci-ranks ci-class ci-pages ci-bare sweep-tests mutants soak every-page run-again other-text executed pretend lint notebooks \
	showing exercises new-exercise text write-back size lock clean

help:
	@echo "make lab                   open the course in JupyterLab, on your own copies in workspace/"
	@echo "make lab FRESH=1           the same, with new copies (asks first)"
	@echo "make lab FLAGS=...         the same, with options of JupyterLab's, such as --no-browser"
	@echo "make doctor                check the machine, and say what to do"
	@echo "make test                  lint, tests, the first notebook and those that a change touches: ten minutes"
	@echo "make check [NB=...]        while you work: lint, models and pictures, one notebook: two minutes"
	@echo "make bench [NAME=...]      ours against PyTorch's own, side by side; GOALS=1: docs/speed.md's goals alone"
	@echo "make site                  the course as static pages: build/site/, for any static host"
	@echo "make teach                 JupyterLab in the course's folder, with nbgrader's menus"
	@echo "make handout DIR=...       a copy for students: no solutions, judges or wrong answers, and no history"
	@echo "make grade NAME=... [JOBS=4]  grade a class: what is open, or after an interruption the rest; marks/NAME.csv"
	@echo "make gradescope NAME=...   the grader of a chapter as Gradescope takes it: dist/gradescope_NAME.zip"
	@echo "make slides [NAME=...]     the pictures and predictions of notebooks as slides: dist/slides/"
	@echo "make authors               what authors type besides"

authors:
	@echo "make notebooks [NB=...]    run notebooks from a fresh kernel and store normalised outputs"
	@echo "make text NB=...           a notebook as a Python text under build/text/, to edit"
	@echo "make write-back NB=...     the edited text into the notebook again"
	@echo "make showing [FILE=...]    which notebooks show a source file (default: those changed since the last commit)"
	@echo "make executed [NB=...]     notebooks run once into build/executed/, outputs and headlines compared"
	@echo "make other-text [NB=...]   the same on another text than the one they are recorded on"
	@echo "make exercises [NAME=...]  exercises/ from solutions/; changed chapters, or NAME, or ALL=1, recorded and tried"
	@echo "make new-exercise NUMBER=6.9 [NAME=my_function]  stubs of an exercise, and what is left to write"
	@echo "make lint                  ruff, codespell and the layers"
	@echo "make size [COMMIT=...]     lines and files by package, this tree against main or a commit"
	@echo "make sweep                 everything, with new random seeds: hours; a workflow runs it at night"
	@echo "make pretend [MODE=nccl]   the whole course on pretended GPUs, in one mode or in all"
	@echo "make mutants [COUNT=60]    who notices a change of course_lib"
	@echo "make run-again             what failed in the last run of tests, alone"
	@echo "make lock [FLAGS=...]      write requirements.lock again"
	@echo "make clean                 remove .venv, build/ and caches"

# .venv/.course is the course's own environment; .venv/.test and so on have an extra of pyproject.toml besides.
COURSE := $(VENV)/.course
$(COURSE): requirements.lock pyproject.toml
	@command -v "$(PYTHON)" >/dev/null 2>&1 || { \
	  echo "There is no '$(PYTHON)' here. Install Python 3.11 or newer, or name one: make test PYTHON=/path/to/python" >&2; \
	  exit 1; }
	@echo "Making the environment in $(VENV): a minute, once."
	"$(PYTHON)" tools/environment.py make $(VENV)
	@touch $@

$(VENV)/.%: $(COURSE)
	$(BIN)/python tools/environment.py make $(VENV) $*
	@touch $@

# Readers work on copies without outputs, so that a prediction comes before its answer and a pull never meets an edit.
lab: $(COURSE)
	@$(WITH_PATH) $(BIN)/python -m tools.lab $(if $(FRESH),--fresh) $(if $(FLAGS),-- $(FLAGS))

doctor: $(COURSE)
	@$(WITH_PATH) $(BIN)/python -c "from course_lib.runtime import doctor; print(doctor())"

teach: $(VENV)/.classes
	@$(WITH_PATH) $(BIN)/python -m tools.lab --teach $(if $(FLAGS),-- $(FLAGS))

# A class, unattended: course_lib/grading/marks/batch.py. OPTIONS go to nbgrader.
grade: $(VENV)/.classes
	@$(WITH_PATH) $(BIN)/python -m course_lib.grading.marks.batch $(NAME) --jobs $(or $(JOBS),1) \
	  $(if $(AGAIN),--again) $(if $(REPORT),--report) $(if $(OPTIONS),-- $(OPTIONS))

gradescope: $(VENV)/.classes
	@$(BIN)/python -m tools.gradescope $(NAME)

handout: $(COURSE)
	@$(BIN)/python -m tools.handout $(DIR)

slides: $(COURSE)
	@$(BIN)/python -m tools.slides $(NAME)

# Pages for any static host, from the recorded outputs. BUILDER=linkcheck looks whether outside links answer.
site: $(VENV)/.site
	@mkdir -p build/site_source
	@$(BIN)/python -m sphinx -b $(or $(BUILDER),html) -c tools/site -d build/site_cache --quiet --fail-on-warning $(FLAGS) \
	  build/site_source build/site$(BUILDER:%=_%)

# Two files at a time (pytest-xdist), since one test starts up to 8 ranks of its own. A second thread in one of these
# processes would only wait for a core, and use up another one while it waits. A failure is told as it happens.
TESTED := $(VENV)/.test
PYTEST := $(WITH_PATH) $(BIN)/python -m pytest
TESTS := OMP_NUM_THREADS=1 $(PYTEST) --numprocesses=3 --dist=loadfile --no-loadscope-reorder --instafail
# What a small change breaks first, and no ranks to wait for but a notebook's.
CHECKED := tests/test_layers.py tests/test_doctests.py tests/facts tests/pictures tests/costs tests/plots tests/widgets

check: lint
	$(TESTS) --cpu-budget=20 --junitxml=build/check.xml -m "not ci" $(CHECKED)
	@$(MAKE) --no-print-directory executed NB="$(or $(NB),$(FIRST))"

# Both, whatever the first one says. A change touches the notebooks that show one of its files.
test: lint
	@status=0; \
	$(TESTS) --cpu-budget=20 --junitxml=build/test.xml -m "not ci" tests || status=$$?; \
	touched=$$($(BIN)/python -m tools.notebooks touched); \
	{ $(WITH_PATH) $(BIN)/python -m tools.run_notebooks $$touched && \
	  $(PYTEST) --junitxml=build/notebooks.xml $$touched; } || status=$$?; \
	exit $$status

# What .ci/run runs after it.
CI_TESTS = $(TESTS) --cpu-budget=150 --timeout=90 -o faulthandler_timeout=300 \
	--junitxml=build/$@.xml -m ci
CLASS := tests/grading tests/test_nbgrader.py tests/test_stock_nbgrader.py tests/tools
PAGES := tests/browser tests/site
ci-class: $(TESTED)
	$(CI_TESTS) $(CLASS)
ci-pages: $(TESTED)
	$(CI_TESTS) $(PAGES)
ci-ranks: $(TESTED)
	$(CI_TESTS) tests $(addprefix --ignore=,$(CLASS) $(PAGES))

# What a machine with a GPU has: the oldest torch that the course supports, and no package of Jupyter. conftest.py wants
# more than is there, and pyproject.toml's settings are of plugins that are not.
BARE := build/bare
ci-bare:
	"$(PYTHON)" tools/environment.py bare $(BARE)
	$(BARE)/bin/python -m tools.gpu_day --mode pretended --json build/bare.json
	OMP_NUM_THREADS=1 $(BARE)/bin/python -W ignore -m pytest -q -rs --noconftest -o strict=false -o addopts= \
	  -p tests.sweep -p tests.snapshots --junitxml=build/$@.xml \
	  tests/runtime/test_launch.py tests/runtime/test_staging.py tests/collectives tests/zero/test_zero.py

# Every test with all its values; whatever is drawn is drawn anew. SEED=N repeats a run.
sweep: sweep-tests pretend soak mutants every-page
SEED ?= $(shell $(PYTHON) -c "import random; print(random.randrange(2**31))")
sweep-tests: $(TESTED)
	@echo "make sweep-tests SEED=$(SEED) draws the same again"
	COURSE_SEED=$(SEED) $(TESTS) --sweep --hypothesis-seed=$(SEED) --timeout=900 -o faulthandler_timeout=0 \
	  --junitxml=build/sweep.xml tests

# Needs a C++ compiler. Fails where something fails that tests/pretend/exceptions.py does not explain.
pretend: $(TESTED)
	@set -e; for mode in $(or $(MODE),nccl gloo-cuda laptop); do \
	  $(BIN)/python -m tests.pretend --mode $$mode; done

soak: $(TESTED)
	$(BIN)/python -m tests.faults.soak

mutants: $(VENV)/.mutants
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.mutants $(COUNT) $(if $(SEED),--seed $(SEED))

every-page: site $(TESTED)
	$(BIN)/python -m tests.site.live.every_page

# Notebooks once, into build/executed/, and compared with what they are stored with. They claim what their readers will
# measure, so they run one after the other, as a reader's does; with JOBS=2 two side by side, and headlines about times
# (tools/cells.py) are told and not judged.
executed: $(TESTED)
	$(WITH_PATH) $(BIN)/python -m tools.run_notebooks $(NB) --jobs $(or $(JOBS),1) $(if $(TEXT),--text $(TEXT))
	$(PYTEST) --junitxml=build/notebooks.xml $(or $(NB),notebooks)

# No printed claim may depend on the text.
OTHER_TEXT := build/other_text.txt
other-text: $(TESTED)
	$(BIN)/python -m tools.other_text $(OTHER_TEXT)
	@$(MAKE) --no-print-directory executed NB="$(NB)" TEXT=$(OTHER_TEXT) JOBS=2

# What failed in the last run, alone: see tools/run_again.py.
run-again: $(TESTED)
	$(WITH_PATH) $(BIN)/python -m tools.run_again

lint: $(TESTED)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m codespell_lib
	$(BIN)/lint-imports --no-logo

notebooks: $(TESTED)
	$(WITH_PATH) $(BIN)/python -m tools.notebooks run $(NB)

showing: $(COURSE)
	@$(BIN)/python -m tools.notebooks showing $(FILE)

exercises: $(TESTED)
	$(BIN)/python -m tools.exercises $(NAME) $(if $(ALL),--all) $(if $(MUTANTS),--mutants)

new-exercise: $(TESTED)
	@$(BIN)/python -m tools.new_exercise $(NUMBER) $(NAME)

# py:percent with magics as they are: jupytext's own py:percent comments them out, and on the way back takes for one of
# them, in prose too, a line such as #!/bin/bash, which then loses its #.
AS_TEXT = build/text/$(subst /,_,$(NB:.ipynb=.py))
text: $(VENV)/.authors
	@test ! -e $(AS_TEXT) || { echo "$(AS_TEXT) is there: make write-back NB=$(NB), or delete it" >&2; exit 1; }
	@mkdir -p $(dir $(AS_TEXT))
	@$(BIN)/python -m jupytext --quiet --to py:hydrogen --output $(AS_TEXT) $(NB)
	@echo "edit $(AS_TEXT), then: make write-back NB=$(NB) && make notebooks NB=$(NB)"

write-back: $(VENV)/.authors
	@test -e $(AS_TEXT) || { echo "there is no $(AS_TEXT): make text NB=$(NB) writes it" >&2; exit 1; }
	@$(BIN)/python -m jupytext --quiet --update --to ipynb --output $(NB) $(AS_TEXT)
	@$(BIN)/python -m tools.notebooks tidy $(NB)
	@rm $(AS_TEXT)

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks $(or $(NAME),$(GOALS:%=--goals) --page docs/speed.md)

size:
	@"$(PYTHON)" tools/size.py $(COMMIT)

# Pins that still fit stay, unless FLAGS of uv's say not. CUDA's packages are left out: see tools/environment.py.
LOCK := requirements.lock
lock:
	$(firstword $(wildcard $(BIN)/uv) uv) pip compile pyproject.toml --universal --all-extras --quiet --no-annotate \
	  --python-version 3.11 \
	  --custom-compile-command "make lock (CUDA packages are absent on purpose: docs/contributing/environment.md)" $(FLAGS) --output-file $(LOCK)
	@grep -vE '^(nvidia-|cuda-|triton|pytorch-triton)' $(LOCK) > $(LOCK).part && mv $(LOCK).part $(LOCK)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
