# Copyright (c) 2026, gpufleet contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test lint sanity sanity-oldest galaxy docs unit fuzz conformance system drain molecule faults build fleet-up fleet-down clean

export PATH := $(CURDIR)/build/venv/bin:$(PATH)
export PYTHONDONTWRITEBYTECODE := 1

HOSTS ?= 2
GPUS ?= 1
VRAM ?= 16384
DRIVER ?= 580
INIT ?= systemd
EXAMPLES ?= 20000

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-13s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## one drain over three hosts: to disk with a reboot, and in memory; on a simulated GPU
	@tests/setup python sim fleet
	@tests/demo/run

test: ## every gate, two at a time; a summary at the end
	@tests/setup python sim fleet
	@python tests/gates/run.py lint,sanity,sanity-oldest,galaxy,docs,unit,conformance,drain molecule,system

lint: ## read the sources: ruff, mypy, ansible-lint, antsibull-docs, antsibull-changelog, reuse
	@tests/setup python
	@tests/gates/lint

sanity: ## ansible-test sanity, without an ignore file
	@tests/setup python
	@tests/gates/sanity

sanity-oldest: ## the same with the oldest ansible-core that the collection supports
	@tests/setup python
	@tests/gates/sanity --oldest

galaxy: ## the artifact, imported as Galaxy does it, without a warning
	@tests/setup python
	@tests/gates/galaxy

docs: ## the documentation site, in build/docs/html, without a warning
	@tests/setup python
	@tests/gates/docs

unit: ## pytest over pure logic: no root, no network
	@tests/setup python
	@python -m pytest tests/unit

fuzz: ## the parsers over what others may write, at random, for long: make fuzz EXAMPLES=20000
	@tests/setup python
	@GPUFLEET_FUZZ=$(EXAMPLES) python -m pytest tests/unit/plugins/security -k fuzz

conformance: ## the simulated driver against what a real one was recorded to do
	@tests/setup python sim fleet
	@tests/conformance/check

system: ## pytest over real hosts: SSH, systemd, CRIU; needs root
	@tests/setup python sim fleet
	@python -m pytest tests/system

drain: ## drains of whole fleets: kills in every phase, budgets, Slurm, many hosts; needs root
	@tests/setup python sim fleet
	@python -m pytest tests/drain

molecule: ## roles and playbooks over real hosts: check mode, twice the same, what is there afterwards; needs root
	@tests/setup python sim fleet
	@tests/gates/molecule

faults: ## every kind of fault at every step that is journalled, then status and recover: about two hours; needs root
	@tests/setup python sim fleet
	@tests/faults/run --record build/faults.json

build: ## the collection's artifact, in build/
	@tests/setup python
	@tests/gates/build

fleet-up: ## test hosts to play with: make fleet-up HOSTS=2 GPUS=1 VRAM=16384 DRIVER=580 INIT=systemd
	@tests/setup python sim fleet
	@tests/sim/build build/sim/root
	@tests/fleet/fleet up --hosts $(HOSTS) --gpus $(GPUS) --vram $(VRAM) --driver $(DRIVER) --init $(INIT) --sim build/sim/root

fleet-down: ## take them down; nothing is left
	@tests/fleet/fleet down

clean: ## take the test hosts down and remove build/; the base image in /var/cache stays
	@if [ -d build/fleet ]; then tests/fleet/fleet down; fi
	@rm -rf build
