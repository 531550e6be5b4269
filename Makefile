# make demo: from a fresh checkout to a trained model.   make test: everything that CI runs.

PYTHON ?= $(firstword $(foreach name,python3 python3.11 python3.12 python3.13 python3.14,\
	$(shell $(name) -c 'import sys; sys.version_info >= (3, 11) and print("$(name)")' 2>/dev/null)))
BIN := .venv/bin
DATA := examples/data

# Bytecode is kept even where the environment says otherwise: tests start a hundred processes, and reading
# Python again takes each of them up to two seconds.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test suite lint types docs clean

# A new pip reads an index in half the time of those that Pythons come with; where there is none, it goes without.
$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "error: Python 3.11 or newer is needed"; exit 2; }
	$(PYTHON) -m venv .venv
	-$(BIN)/pip install --quiet --disable-pip-version-check --upgrade pip

.venv/installed: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -e .
	@touch $@

.venv/installed-test: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -e '.[test]'
	@touch $@ .venv/installed

demo: .venv/installed
	rm -rf demo
	$(BIN)/dnc compile examples/treelstm.dn -o demo/build --set hidden=64,embed=64
	$(BIN)/dnc run demo/build --data $(DATA)/sentiment-train.jsonl --dev $(DATA)/sentiment-dev.jsonl \
		--epochs 8 --batch 16 --device cpu --run-dir demo/run --log-every 100
	$(BIN)/dnc run demo/build --data $(DATA)/sentiment-dev.jsonl --eval --device cpu --run-dir demo/run
	$(BIN)/dnc run demo/build --data $(DATA)/sentiment-dev.jsonl --device cpu --run-dir demo/run \
		--predict demo/predictions.jsonl

.venv/installed-docs: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -e '.[docs]'
	@touch $@

docs: .venv/installed-docs
	$(BIN)/mkdocs build

lint: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/dnc fmt --check examples

types: .venv/installed-test
	$(BIN)/mypy --strict dnc

test: .venv/installed-test
	$(MAKE) --no-print-directory -j 2 lint types suite

# Two processes of tests have two cores: threads of NumPy's and PyTorch's own would wait for each other.
suite: export OMP_NUM_THREADS := 1
suite: export OPENBLAS_NUM_THREADS := 1
suite: .venv/installed-test
	$(BIN)/python -m pytest -n 2 --dist worksteal

clean:
	rm -rf .venv demo build runs site .mypy_cache .pytest_cache .ruff_cache .hypothesis
