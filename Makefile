# Thin recipes; the work is in deploy/local, .ci and the crates.
export SQLX_OFFLINE := true

.PHONY: up down demo test check bench build

build:
	cargo build --quiet --workspace

up: build
	deploy/local/fleet up

down:
	deploy/local/fleet down

demo: up
	python3 deploy/local/demo

test:
	deploy/local/test

check:
	deploy/local/check

bench:
	deploy/local/bench
