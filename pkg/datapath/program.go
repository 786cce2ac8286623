// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// programInfo is how the kernel's struct bpf_prog_info begins.
type programInfo struct {
	_, id uint32 // the first is the type
	_     [8]byte
	_     [2]uint32
	_     [3]uint64
	_     [2]uint32
	_     uint64
	name  [unix.BPF_OBJ_NAME_LEN]byte
}

// infoAttr is what BPF_OBJ_GET_INFO_BY_FD takes, of infoAttrSize bytes: Go adds some behind
// a field that is empty on 64 bits, and the kernel refuses them.
type infoAttr struct {
	fd, size uint32
	info     unsafe.Pointer
	_        [8 - unsafe.Sizeof(uintptr(0))]byte
}

const infoAttrSize = 16

// identify asks the kernel for a program's id, and for its name as far as the kernel keeps
// it. Program.Info also has the kernel write out all instructions, before and after
// compilation, which took ADD longer than anything else of the fast path.
func identify(p *ebpf.Program) (ebpf.ProgramID, string, error) {
	var info programInfo
	attr := infoAttr{fd: uint32(p.FD()), size: uint32(unsafe.Sizeof(info)), info: unsafe.Pointer(&info)}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_OBJ_GET_INFO_BY_FD, uintptr(unsafe.Pointer(&attr)), infoAttrSize)
	if errno != 0 {
		return 0, "", fmt.Errorf("read %v: %w", p, errno)
	}
	return ebpf.ProgramID(info.id), unix.ByteSliceToString(info.name[:]), nil
}

// programName is the name of a loaded program.
func programName(id ebpf.ProgramID) (string, error) {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return "", fmt.Errorf("open program %d: %w", id, err)
	}
	defer p.Close()
	_, name, err := identify(p)
	if err != nil {
		return "", err
	}
	if len(name) < unix.BPF_OBJ_NAME_LEN-1 || strings.HasPrefix(name, ours) {
		return name, nil
	}
	// The kernel cut it short; the program's type information has all of it.
	info, err := p.Info()
	if err != nil {
		return "", fmt.Errorf("read program %d: %w", id, err)
	}
	return info.Name, nil
}
