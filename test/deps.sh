#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs the commands and headers that a part of the work needs, and only those that are missing.
# usage: test/deps.sh demo|bench|test|runtime|generate|lint|ci...
#
# Debian and Ubuntu: by apt-get, as root. Elsewhere: names what is missing and exits 1.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")"
# shellcheck source=test/tools/versions.env
source tools/versions.env

# Commands of root's, so that a user without sbin in the path is not told that they are missing.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

# needs PROFILE: one need a line: a command, or the absolute path of a file, and its Debian package.
needs() {
	case $1 in
	demo) ;; # xvethctl does all of it over netlink and bpf(2)
	bench) echo iptables iptables ;; # of which ptp and bridge make use, and what is like kube-proxy
	test)
		cat <<-END
			nft nftables
			iptables iptables
			ip iproute2
			tc iproute2
			ss iproute2
			ethtool ethtool
			ping iputils-ping
			traceroute traceroute
			tracepath iputils-tracepath
			conntrack conntrack
			tcpdump tcpdump
			tmux tmux
			iperf3 iperf3
			bpftool bpftool
		END
		;;
	runtime)
		cat <<-END
			containerd containerd
			runc runc
			podman podman
			/usr/share/doc/busybox-static busybox-static
		END
		;;
	generate)
		cat <<-END
			git git
			clang-$LLVM_VERSION clang-$LLVM_VERSION
			llvm-strip-$LLVM_VERSION llvm-$LLVM_VERSION
			/usr/include/bpf/bpf_helpers.h libbpf-dev
			/usr/include/linux/bpf.h linux-libc-dev
		END
		;;
	lint)
		cat <<-END
			git git
			clang-format-$LLVM_VERSION clang-format-$LLVM_VERSION
			shellcheck shellcheck
		END
		;;
	ci)
		cat <<-END
			make make
			git git
			/etc/ssl/certs/ca-certificates.crt ca-certificates
		END
		;;
	*)
		echo "test/deps.sh: no such profile: \"$1\" (demo, bench, test, runtime, generate, lint, ci)" >&2
		exit 2
		;;
	esac
}

have() {
	case $1 in
	/*) [[ -e $1 ]] ;;
	*) command -v "$1" >/dev/null ;;
	esac
}

# resolve PACKAGE: what apt is asked for. Older Ubuntu has bpftool only in the kernel's tools.
resolve() {
	if [[ $1 == bpftool ]] && ! apt-cache policy bpftool | grep -q 'Candidate: [^(]'; then
		echo "linux-tools-common linux-tools-$(uname -r)"
	else
		echo "$1"
	fi
}

install_packages() {
	local package packages=()
	export DEBIAN_FRONTEND=noninteractive
	# A broken third-party source must not stand in the way: the install below is the judge.
	apt-get update -qq || echo "test/deps.sh: apt-get update did not succeed, going on" >&2
	for package in "$@"; do
		read -ra resolved <<<"$(resolve "$package")"
		packages+=("${resolved[@]}")
	done
	apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=300 \
		-o Dpkg::Use-Pty=0 "${packages[@]}" >&2
}

main() {
	local profile list need package missing=() packages=()
	if (($# == 0)); then
		echo "usage: test/deps.sh demo|bench|test|runtime|generate|lint|ci..." >&2
		exit 2
	fi
	for profile in "$@"; do
		list=$(needs "$profile")
		while read -r need package; do
			if [[ -n $need ]] && ! have "$need"; then
				missing+=("$need")
				packages+=("$package")
			fi
		done <<<"$list"
	done
	if ((${#missing[@]} == 0)); then
		return
	fi
	mapfile -t packages < <(printf '%s\n' "${packages[@]}" | sort -u)

	if ! command -v apt-get >/dev/null; then
		echo "test/deps.sh: install these, which only Debian and Ubuntu get by themselves:" >&2
		printf '  %s\n' "${missing[@]}" >&2
		echo "(Debian has them in: ${packages[*]})" >&2
		exit 1
	fi
	if ((EUID != 0)); then
		echo "test/deps.sh: missing: ${missing[*]}" >&2
		echo "run as root: apt-get update && apt-get install ${packages[*]}" >&2
		exit 1
	fi
	echo "installing ${packages[*]}" >&2
	install_packages "${packages[@]}"
	for need in "${missing[@]}"; do
		if ! have "$need"; then
			echo "test/deps.sh: \"$need\" is still missing after apt-get install" >&2
			exit 1
		fi
	done
}

main "$@"
