# Two commands do everything: `make reproduce` and `make test`. Both make .venv first.
# `make reproduce` runs the main figures and shows committed results of the others; `make
# reproduce-all` runs them all, and `make commit-results` takes its datasets for the next commit.
PYTHON ?= python3
BIN := .venv/bin

# Large temporaries on Linux CPUs pay for page faults; huge pages make a training step up to 30% faster.
export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1
# Containers often set this; then each of the tests' processes would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

MAIN := stability_plane,max_update,discrete_boundary,normal_curves,kadam_stability,strategies_text

.PHONY: reproduce reproduce-all evening commit-results reissue-results test test-oldest test-newest coverage smoke lint docs clean

reproduce: .venv/experiments.stamp
	$(BIN)/python -m experiments reproduce --only $(MAIN)

reproduce-all: .venv/experiments.stamp
	$(BIN)/python -m experiments reproduce

# The figures with claims that laptop leaves open: hours. A run that is stopped continues.
evening: .venv/experiments.stamp
	$(BIN)/python -m experiments reproduce --preset evening

PRESETS = laptop evening
figures = $(notdir $(basename $(patsubst %/data.nc,%,$(wildcard $(1)))))

commit-results: .venv/experiments.stamp
	$(foreach preset,$(PRESETS),$(if $(call figures,results/$(preset)/*/data.nc),\
		$(BIN)/python -m experiments commit --preset $(preset) $(call figures,results/$(preset)/*/data.nc) &&)) true

# After a change that leaves numbers as they were; BEFORE has what `make smoke` wrote before it.
reissue-results: .venv/experiments.stamp
	$(foreach preset,$(PRESETS),$(if $(call figures,experiments/committed/$(preset)/*.nc),\
		$(BIN)/python -m experiments commit --preset $(preset) --reissue $(BEFORE) \
		$(call figures,experiments/committed/$(preset)/*.nc) &&)) true

test: .venv/test.stamp
	$(BIN)/python -m pytest -n auto --dist worksteal

# With the lowest versions that pyproject.toml allows, and with the newest that there are.
PYTHON_OLDEST ?= 3.11
PYTHON_NEWEST ?= 3.13
test-oldest: VERSION = $(PYTHON_OLDEST)
test-oldest: RESOLUTION = lowest-direct
test-newest: VERSION = $(PYTHON_NEWEST)
test-newest: RESOLUTION = highest

test-oldest test-newest: test-%: .venv/dev.stamp
	$(BIN)/uv venv --quiet --clear --python $(VERSION) .venv/$*
	$(BIN)/uv pip install --quiet --python .venv/$* --resolution $(RESOLUTION) --editable '.[test]'
	.venv/$*/bin/python -m pytest -n auto --dist worksteal

# Builds the wheel and the sdist. The wheel answers a question where only its dependencies are
# installed; then the library's tests, as the sdist has them, run with it.
DIST := .venv/dist
.PHONY: dist check-tag
dist: .venv/dev.stamp
	rm -rf dist $(DIST)
	$(BIN)/uv build --quiet --python $(BIN)/python --out-dir dist
	$(BIN)/twine check --strict dist/*
	$(BIN)/uv venv --quiet --python $(BIN)/python $(DIST)
	$(BIN)/uv pip install --quiet --python $(DIST) dist/*.whl
	cd $(DIST) && bin/python -m kadam_jax diagnose --b1 0.9 --b2 0.999
	$(BIN)/uv pip install --quiet --python $(DIST) "$$(echo dist/*.whl)[test]"
	mkdir $(DIST)/sdist
	tar -xzf dist/*.tar.gz -C $(DIST)/sdist --strip-components 1
	rm -r $(DIST)/sdist/kadam_jax
	cd $(DIST)/sdist && ../bin/python -m pytest -n auto --dist worksteal tests/kadam_jax

# TAG is the tag that a release is made from.
check-tag: .venv/dev.stamp
	test "$(TAG)" = "v$$($(BIN)/python -m hatchling version)"

coverage: .venv/test.stamp
	$(BIN)/python -m pytest -n auto --dist worksteal --cov --cov-report=term:skip-covered

smoke: .venv/experiments.stamp
	$(BIN)/python -m experiments reproduce --preset smoke --results results/smoke-run

# On a machine with an accelerator, where JAX's own extra is installed: what a card can do, in about
# twelve minutes. What takes longer than its share is stopped, and its finished chunks are kept.
CARD = GLIBC_TUNABLES= timeout --signal=INT $(1) $(BIN)/python -m experiments
.PHONY: accelerator scale
accelerator: .venv/experiments.stamp
	-$(call CARD,180) bench optimizer --set repeats=100
	-$(call CARD,120) bench train --set paper=True
	-$(call CARD,120) bench train --set paper=True --set dtype=bfloat16 --set attention=cudnn
	-$(call CARD,120) bench sweep --set compiled_apart=2
	-$(call CARD,90) bench cnn --set paper=True
	-$(call CARD,180) run max_update --preset paper --results results/accelerator

# Compiles training for slices of TPUs without having any (GPUs need GPU_TARGET, see its --help).
scale: .venv/aot.stamp
	JAX_PLATFORMS=cpu $(BIN)/python -m experiments bench scale --save results/scale $(if $(GPU_TARGET),--set gpu_target=$(GPU_TARGET))

lint: .venv/dev.stamp
	$(BIN)/pre-commit run --all-files

# The site, into build/docs; notebooks run, a warning is an error, and nothing is downloaded.
docs: .venv/docs.stamp
	$(BIN)/sphinx-build --fresh-env --fail-on-warning --keep-going --jobs auto \
		--doctree-dir build/doctrees docs build/docs

.venv/%.stamp: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable '.[$*]'
	touch $@

clean:
	rm -rf .venv results build dist docs/gallery docs/api/generated
