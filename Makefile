.PHONY: setup demo check test bench

setup:
	scripts/setup

demo:
	./demo

check:
	./check

test: setup
	scripts/test

bench: setup
	.venv/bin/python -m benchmarks
