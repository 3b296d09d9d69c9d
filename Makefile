.PHONY: setup demo check test bench

setup:
	scripts/setup

demo:
	./demo

check:
	./check

test: setup
	.venv/bin/python -m pytest

bench: setup
	.venv/bin/python -m benchmarks
