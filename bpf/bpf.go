// SPDX-License-Identifier: Apache-2.0

// Package bpf holds the compiled BPF programs and the Go types generated from
// their C sources. It loads nothing: see pkg/datapath.
package bpf

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -type xv_key4 -type xv_key6 -type xv_flow -type xv_flow4 -type xv_flow6 -type xv_settings -type xv_loss_key -type xv_port -type xv_refusal -type xv_slot Datapath xveth_datapath.bpf.c -- -O2 -g -Wall -Wextra -Wno-unused-parameter -Werror

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -type rig_pod Rig xveth_rig.bpf.c -- -O2 -g -Wall -Wextra -Wno-unused-parameter -Werror

// Object returns the compiled programs as an ELF object.
func Object() []byte { return _DatapathBytes }
