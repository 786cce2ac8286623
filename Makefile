# SPDX-License-Identifier: Apache-2.0
# "make" lists the targets. Every recipe stops at the first command that fails.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-builtin-rules
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

include test/tools/versions.env

# One folder a binary; bin/ gets each under the folder's name.
PLUGINS  := plugins/xveth plugins/xveth-chain
COMMANDS := cmd/xvethctl cmd/xvethd

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS := -s -w -X main.version=$(VERSION)
# The version comes from above, and asking git once more fails in a tree of another user's.
GOBUILD := CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)'

PREFIX ?= /usr/local
CNIDIR ?= /opt/cni/bin
CACHE  := $(CURDIR)/.cache
GOLANGCI_LINT := $(CACHE)/golangci-lint-$(GOLANGCI_LINT_VERSION)/golangci-lint

# Extra arguments: of the demo, of the benchmarks, and of "go test" in test (make test ARGS='-run TestAdd ./test/e2e').
ARGS ?=

GENERATED  := '*_bpfel.go' '*_bpfel.o' '*_bpfeb.go' '*_bpfeb.o' docs/configuration.md docs/metrics.md
C_SOURCES   = $(wildcard bpf/*.c bpf/*.h)
SH_SOURCES := .ci/run test/deps.sh test/run.sh

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' Makefile

.PHONY: build
build: ## build the binaries into bin/ (needs Go only)
	@mkdir -p bin
	$(GOBUILD) -o bin/ $(addprefix ./,$(PLUGINS) $(COMMANDS))

IMAGE ?= ghcr.io/xveth/xvethd:$(VERSION)
DOCKER ?= $(if $(shell command -v docker),docker,podman)

.PHONY: image
image: build ## build the image of xvethd (IMAGE=name:tag; needs docker or podman)
	$(DOCKER) build -t $(IMAGE) -f cmd/xvethd/Dockerfile .

.PHONY: man
man: build ## write the manual pages of xvethctl into .cache/man
	bin/xvethctl man $(CACHE)/man

.PHONY: demo
demo: build ## show what xveth does, in namespaces of its own (root; make demo ARGS=--json)
	@test/deps.sh demo
	@bin/xvethctl demo $(ARGS)

.PHONY: test
test: ## run every test (root: they make network namespaces); ARGS go to go test
	@test/run.sh $(ARGS)

.PHONY: test-unit
test-unit: ## run the tests that need no root
	@go test -C test/tools ./...
	@go test -short ./pkg/...

.PHONY: test-tools
test-tools: # cnitool and the reference plugins at the versions of test/tools/go.mod, and testsum
	@mkdir -p .cache/bin
	CGO_ENABLED=0 go build -C test/tools -trimpath -buildvcs=false -o $(CACHE)/bin/ tool ./testsum

.PHONY: test-runtime
test-runtime: runtime-tools ## run the tests with containerd, podman, libcni and chains of plugins (root; installs and builds them)
	@test/deps.sh runtime
	@TIMEOUT=$${TIMEOUT:-15m} test/run.sh $(ARGS) ./test/runtime
	@TIMEOUT=$${TIMEOUT:-15m} test/run.sh chains

.PHONY: runtime-tools
runtime-tools: # containerd and crictl at the versions of test/tools/runtime/go.mod: some minutes, once
	@mkdir -p .cache/runtime
	CGO_ENABLED=0 go build -C test/tools/runtime -trimpath -buildvcs=false -ldflags '-s -w' -o $(CACHE)/runtime/ tool

BENCH := $(CACHE)/bench

.PHONY: bench
bench: build test-tools ## measure xveth beside the reference plugins, an hour long (root; ARGS='--duration 1s'), into .cache/bench
	@test/deps.sh bench
	@mkdir -p $(BENCH)
	@status=0; bin/xvethctl bench run all --json --reference $(CACHE)/bin $(ARGS) >$(BENCH)/results.json || status=$$?; \
	bin/xvethctl bench report $(BENCH)/results.json --html $(BENCH)/benchmarks.html --markdown $(BENCH)/benchmarks.md; \
	exit $$status

.PHONY: bench-packages
bench-packages: ## run the benchmarks of the packages' tests
	@go test -run '^$$' -bench . ./pkg/...

.PHONY: generate
generate: ## compile the BPF programs, write their Go bindings and tables of docs/ (installs clang)
	@test/deps.sh generate
	BPF2GO_CC=clang-$(LLVM_VERSION) BPF2GO_STRIP=llvm-strip-$(LLVM_VERSION) \
	BPF2GO_CFLAGS="-I/usr/include/$$(uname -m)-linux-gnu $${BPF2GO_CFLAGS:-}" \
		go generate ./...

.PHONY: generate-check
generate-check: generate ## generate, and fail if what is in git was not up to date
	@git diff --exit-code --stat -- $(GENERATED) || \
		{ echo 'generated files were not up to date: add them to the commit' >&2; exit 1; }
	@new=$$(git ls-files --others --exclude-standard -- $(GENERATED)); \
	if [[ -n $$new ]]; then \
		printf 'generated files that git does not have:\n%s\n' "$$new" >&2; exit 1; \
	fi

.PHONY: lint
lint: $(GOLANGCI_LINT) ## check Go, C and shell for style and common mistakes
	@test/deps.sh lint
	@echo '== gofmt'; files=$$(gofmt -l bpf cmd examples pkg plugins test); \
	if [[ -n $$files ]]; then printf 'not formatted (make fmt):\n%s\n' "$$files" >&2; exit 1; fi
	@echo '== go vet'; go vet ./...; go vet -C test/tools ./...
	@echo '== golangci-lint'; $(GOLANGCI_LINT) run ./...; \
	cd test/tools; $(GOLANGCI_LINT) run --config ../../.golangci.yml ./...
	@echo '== clang-format'; \
	if [[ -n "$(C_SOURCES)" ]]; then \
		clang-format-$(LLVM_VERSION) --dry-run -Werror $(C_SOURCES); \
	fi
	@echo '== shellcheck'; shellcheck -x $(SH_SOURCES)

.PHONY: fmt
fmt: $(GOLANGCI_LINT) ## format Go and C
	@test/deps.sh lint
	$(GOLANGCI_LINT) fmt ./...
	@if [[ -n "$(C_SOURCES)" ]]; then clang-format-$(LLVM_VERSION) -i $(C_SOURCES); fi

$(GOLANGCI_LINT): # named after its version, so that a new pin builds anew
	@echo 'building golangci-lint $(GOLANGCI_LINT_VERSION): some minutes, once'
	GOFLAGS= CGO_ENABLED=0 GOBIN=$(@D) \
		go install -trimpath github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_LINT_VERSION)

.PHONY: check
check: generate-check lint test ## all that a change needs: generate-check, lint, test

.PHONY: tools
tools: test-tools runtime-tools $(GOLANGCI_LINT) ## build the pinned tools of test and lint into .cache/

.PHONY: deps
deps: ## install all that demo, the tests, generate and lint need (root)
	@test/deps.sh demo bench test runtime generate lint

.PHONY: install
install: build ## install into $(DESTDIR): plugins to /opt/cni/bin, commands to PREFIX/bin
	install -d $(DESTDIR)$(CNIDIR) $(DESTDIR)$(PREFIX)/bin
	install -m 0755 $(addprefix bin/,$(notdir $(PLUGINS))) $(DESTDIR)$(CNIDIR)/
	install -m 0755 $(addprefix bin/,$(notdir $(COMMANDS))) $(DESTDIR)$(PREFIX)/bin/

.PHONY: uninstall
uninstall: ## remove what install put there
	rm -f $(addprefix $(DESTDIR)$(CNIDIR)/,$(notdir $(PLUGINS)))
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/bin/,$(notdir $(COMMANDS)))

.PHONY: clean
clean: ## remove bin/ and .cache/
	rm -rf bin .cache
