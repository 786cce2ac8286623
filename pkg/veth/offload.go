// SPDX-License-Identifier: Apache-2.0

package veth

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// offloads reads and sets offloads of devices in the namespace that it was
// opened in. Each takes one call of the old ethtool interface: the library
// fetches the names of all features every time, which takes longer than making
// the veth pair.
type offloads struct{ fd int }

func newOffloads() (*offloads, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open ethtool: %w", err)
	}
	return &offloads{fd: fd}, nil
}

func (o *offloads) close() {
	if o != nil {
		unix.Close(o.fd)
	}
}

// ethtoolValue is struct ethtool_value of the kernel.
type ethtoolValue struct{ cmd, data uint32 }

// ifreqData is struct ifreq with a pointer in its union.
type ifreqData struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [24 - unsafe.Sizeof(uintptr(0))]byte
}

func (o *offloads) call(ifname string, cmd, data uint32) (uint32, error) {
	value := ethtoolValue{cmd: cmd, data: data}
	req := ifreqData{data: unsafe.Pointer(&value)}
	copy(req.name[:len(req.name)-1], ifname)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(o.fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req)))
	if errno != 0 {
		return 0, errno
	}
	return value.data, nil
}

// set turns on generic receive offload, which makes the device run NAPI:
// without it every frame that XDP redirects into the veth is lost. Then it
// verifies that.
func (o *offloads) set(ifname string, txChecksumOff bool) error {
	if _, err := o.call(ifname, unix.ETHTOOL_SGRO, 1); err != nil {
		return fmt.Errorf("turn on gro of %q in the pod: %w", ifname, err)
	}
	if txChecksumOff {
		if _, err := o.call(ifname, unix.ETHTOOL_STXCSUM, 0); err != nil {
			return fmt.Errorf("turn off tx checksums of %q in the pod: %w", ifname, err)
		}
	}
	return o.check(ifname, txChecksumOff)
}

// check compares the offloads of the pod's end.
func (o *offloads) check(ifname string, txChecksumOff bool) error {
	gro, err := o.call(ifname, unix.ETHTOOL_GGRO, 0)
	if err != nil {
		return fmt.Errorf("read gro of %q in the pod: %w", ifname, err)
	}
	if gro == 0 {
		return fmt.Errorf("gro of %q in the pod is off: frames redirected to it would be lost", ifname)
	}
	if !txChecksumOff {
		return nil
	}
	sum, err := o.call(ifname, unix.ETHTOOL_GTXCSUM, 0)
	if err != nil {
		return fmt.Errorf("read tx checksums of %q in the pod: %w", ifname, err)
	}
	if sum != 0 {
		return fmt.Errorf("tx checksums of %q in the pod are offloaded: redirected frames would carry none", ifname)
	}
	return nil
}
