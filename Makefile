# Each target is one command of labkit; the same without make: python3 -m labkit labs
PYTHON ?= python3
unexport PYTHONSAFEPATH  # with it, Python would not find labkit in this folder

labs lab test book doctor setup clean:
	@$(PYTHON) -m labkit $@ $(ARGS)

.PHONY: labs lab test book doctor setup clean
.DEFAULT_GOAL := labs
