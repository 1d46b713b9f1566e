# Thin recipes; the work is in deploy/local, .ci and the crates.
export SQLX_OFFLINE := true
PACKAGES := -p counterfoil-ingest -p counterfoil-relay -p counterfoil-consumers -p counterfoil-migrate -p counterfoil-ops

.PHONY: up down demo test check bench build

build:
	cargo build --quiet $(PACKAGES)

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
