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

.PHONY: help authors lab teach grade gradescope classroom50 handout slides site doctor check test sweep bench \
	ci-ranks ci-class ci-pages sweep-tests mutants soak every-page run-again other-text executed pretend lint notebooks \
	showing exercises mistakes text write-back size lock clean

help:
	@echo "make lab                   open the course in JupyterLab, on your own copies in workspace/"
	@echo "make lab FRESH=1           the same, with new copies (asks first)"
	@echo "make lab FLAGS=...         the same, with options of JupyterLab's, such as --no-browser"
	@echo "make doctor                check the machine, and say what to do"
	@echo "make test                  lint, tests, the first notebook and those that a change touches: ten minutes"
	@echo "make check [NB=...]        while you work: lint, models and pictures, one notebook: two minutes"
	@echo "make bench [NAME=...]      ours against PyTorch's own, side by side"
	@echo "make site                  the course as static pages: build/site/, for any static host"
	@echo "make teach                 JupyterLab in the course's folder, with nbgrader's menus"
	@echo "make handout DIR=...       a copy for students: no solutions, judges or wrong answers, and no history"
	@echo "make grade NAME=... [JOBS=4]  grade a class: what is open, or after an interruption the rest; marks/NAME.csv"
	@echo "make gradescope NAME=...   the grader of a chapter as Gradescope takes it: dist/gradescope_NAME.zip"
	@echo "make classroom50 NAME=...  the same for Classroom 50"
	@echo "make slides [NAME=...]     the pictures and predictions of notebooks as slides: dist/slides/"
	@echo "make authors               what authors type besides"

authors:
	@echo "make notebooks [NB=...]    run notebooks from a fresh kernel and store normalised outputs"
	@echo "make text NB=...           a notebook as a Python text under build/text/, to edit"
	@echo "make write-back NB=...     the edited text into the notebook again"
	@echo "make showing [FILE=...]    which notebooks show a source file (default: those changed since the last commit)"
	@echo "make executed [NB=...]     notebooks run once into build/executed/, outputs and headlines compared"
	@echo "make other-text [NB=...]   the same on another text than the one they are recorded on"
	@echo "make exercises             exercises/ from solutions/, by nbgrader"
	@echo "make mistakes [NAME=...]   record hints and what wrong answers give, of chapters such as 02_collectives"
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
	  $(if $(AGAIN),--again) $(if $(OPTIONS),-- $(OPTIONS))

gradescope classroom50: $(VENV)/.classes
	@$(BIN)/python -m tools.platforms $@ $(NAME)

handout: $(COURSE)
	@$(BIN)/python -m tools.handout $(DIR)

slides: $(COURSE)
	@$(BIN)/python -m tools.slides $(NAME)

# Pages for any static host, from the recorded outputs. FLAGS=--linkcheck looks whether outside links answer.
site: $(VENV)/.site
	@$(BIN)/python -m tools.site $(FLAGS)

# Two files at a time (pytest-xdist), since one test starts up to 8 ranks of its own. A second thread in one of these
# processes would only wait for a core, and use up another one while it waits. A failure is told as it happens.
TESTED := $(VENV)/.test
PYTEST := $(WITH_PATH) $(BIN)/python -m pytest
TESTS := OMP_NUM_THREADS=1 $(PYTEST) --numprocesses=2 --dist=loadfile --no-loadscope-reorder --instafail
# What a small change breaks first, and no ranks to wait for but a notebook's.
CHECKED := tests/test_layers.py tests/test_doctests.py tests/facts tests/pictures tests/costs tests/plots tests/widgets

check: lint
	$(TESTS) --cpu-budget=20 --cpu-report=check -m "not ci" $(CHECKED)
	$(MAKE) executed NB=$(or $(NB),$(FIRST))

# Both, whatever the first one says. A change touches the notebooks that show one of its files.
test: lint
	@status=0; \
	$(TESTS) --cpu-budget=20 --cpu-report=test --junitxml=build/test.xml -m "not ci" tests || status=$$?; \
	$(MAKE) executed NB="$(FIRST) $$($(BIN)/python -m tools.notebooks touched)" || status=$$?; \
	exit $$status

# What .ci/run runs after it.
CI_TESTS = $(TESTS) --cpu-budget=150 --cpu-report=$@ --junitxml=build/$@.xml -m ci
CLASS := tests/grading tests/test_nbgrader.py tests/test_stock_nbgrader.py tests/tools
PAGES := tests/browser tests/site
ci-class: $(TESTED)
	$(CI_TESTS) $(CLASS)
ci-pages: $(TESTED)
	$(CI_TESTS) $(PAGES)
ci-ranks: $(TESTED)
	$(CI_TESTS) tests $(addprefix --ignore=,$(CLASS) $(PAGES))

# Every test with all its values; whatever is drawn is drawn anew. SEED=N repeats a run.
sweep: sweep-tests pretend soak mutants every-page
SEED ?= $(shell $(PYTHON) -c "import random; print(random.randrange(2**31))")
sweep-tests: $(TESTED)
	@echo "make sweep-tests SEED=$(SEED) draws the same again"
	COURSE_SEED=$(SEED) $(TESTS) --sweep --hypothesis-seed=$(SEED) --timeout=900 -o faulthandler_timeout=0 \
	  --cpu-report=sweep --junitxml=build/sweep.xml tests

# Needs a C++ compiler. Fails where something fails that tests/pretend/exceptions.py does not explain.
pretend: $(TESTED)
	@set -e; for mode in $(or $(MODE),nccl gloo-cuda any laptop); do \
	  $(BIN)/python -m tests.pretend --mode $$mode; done

soak: $(TESTED)
	$(BIN)/python -m tests.faults.soak

mutants: $(VENV)/.mutants
	OMP_NUM_THREADS=1 $(BIN)/python -m tools.library_mutants $(COUNT) $(if $(SEED),--seed $(SEED))

every-page: site $(TESTED)
	$(BIN)/python -m tests.site.live.every_page

# What failed in the last run, alone: see tools/run_again.py.
run-again: $(TESTED)
	$(WITH_PATH) $(BIN)/python -m tools.run_again

lint: $(TESTED)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m codespell_lib

notebooks: $(TESTED)
	$(WITH_PATH) $(BIN)/python -m tools.notebooks run $(NB)

showing: $(COURSE)
	@$(BIN)/python -m tools.notebooks showing $(FILE)

exercises: $(VENV)/.classes
	$(BIN)/python -m tools.exercises

mistakes: $(TESTED)
	$(BIN)/python -m tools.mistakes $(NAME)

text: $(VENV)/.authors
	$(BIN)/python -m tools.notebooks text $(NB)

write-back: $(VENV)/.authors
	$(BIN)/python -m tools.notebooks write-back $(NB)

bench: $(VENV)/.bench
	$(BIN)/python -m benchmarks $(NAME)

size:
	@"$(PYTHON)" tools/size.py $(COMMIT)

lock:
	"$(PYTHON)" tools/environment.py lock $(FLAGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
