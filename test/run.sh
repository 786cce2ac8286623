#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds what the tests run, installs what they need, and runs them: everything, or what is named.
# usage: test/run.sh [go test arguments]      for example: test/run.sh -run TestAdd ./test/e2e
#        test/run.sh chains                   the tests with chains of other plugins
#
# Environment: TIMEOUT, the limit for one package (default 10m).
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ((EUID != 0)); then
	echo "the tests make network namespaces: run as root (sudo make test)" >&2
	exit 1
fi

test/deps.sh test
make --no-print-directory build test-tools

# Where the tests find our binaries, and cnitool and the reference plugins.
export XVETH_BIN=$PWD/bin
export XVETH_TEST_BIN=$PWD/.cache/bin
export XVETH_RUNTIME_BIN=$PWD/.cache/runtime
export PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

# Tests of test/e2e in which other plugins take part. They run with those of the runtimes.
CHAINS='^Test(Meta|Chained|Break|Install|Bench)'

# One package at a time (-p 1): the leak checks look at all programs and maps of the kernel, and
# the limits of time would not hold beside another package's load. Compile at full width before.
go build ./...
tests() {
	go test -json -count=1 -p 1 -timeout "${TIMEOUT:-10m}" "$@"
}
all() {
	local failed=0 packages
	mapfile -t packages < <(go list ./... | grep -v -e /test/runtime -e /test/e2e)
	go test -C test/tools -json ./... || failed=1
	tests "${packages[@]}" || failed=1
	tests -skip "$CHAINS" ./test/e2e || failed=1
	return $failed
}
run() {
	case ${1:-} in
	"") all ;;
	chains) tests -run "$CHAINS" ./test/e2e ;;
	*) tests "$@" ;;
	esac
}
run "$@" | .cache/bin/testsum -skips test/skips.txt
