# `make demo` shows the system, `make test` checks it. Both need Python 3.10 to 3.13 and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# compat: else Python, started beside a clone of this repository's name, takes the clone for the package
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --config-settings editable_mode=compat

.PHONY: demo mininet-demo compose-demo test check p4 proto clean

demo: $(VENV)/run
	$(BIN)/switchreduce demo $(DEMO)

# On network namespaces, with BMv2 where it is installed: as root, with Debian's mininet.
mininet-demo: $(VENV)/run
	$(BIN)/python -m switchreduce.sim.mininet.star $(DEMO)

# In containers around BMv2's image; settings as in .env: make compose-demo WORKERS=6 COMPOSE_PROFILES=embedded
compose-demo:
	docker compose up --build --exit-code-from worker0; status=$$?; docker compose down; exit $$status

test: $(VENV)/dev
	$(BIN)/pytest $(PYTEST)

check: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Recompile the P4 program with p4c-bm2-ss from PATH or docker's p4lang/p4c.
p4: $(VENV)/run
	$(BIN)/python p4/build.py

# Regenerate the gRPC stubs; protoc 3.20 or 3.21, as p4runtime-shell keeps protobuf below 3.21.
proto:
	protoc -I. --python_out=. --pyi_out=. --grpc_python_out=. \
	    --plugin=protoc-gen-grpc_python=$$(which grpc_python_plugin) switchreduce/controller/coordinator.proto

clean:
	rm -rf $(VENV) build *.egg-info

$(VENV)/run: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' \
	    || { echo "Python 3.10 to 3.13 is needed: make PYTHON=python3.12 ..."; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing switchreduce and what it needs into $(VENV)"
	$(PIP) --editable .
	@touch $@

$(VENV)/dev: $(VENV)/run
	@echo "installing what the tests need into $(VENV)"
	$(PIP) --editable '.[dev]'
	@touch $@
