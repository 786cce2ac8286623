// SPDX-License-Identifier: Apache-2.0

// Package netconf reads the network configuration that a runtime hands to the
// plugins on standard input, checks every value and reports mistakes as CNI
// errors. It touches neither the kernel nor the disk.
package netconf

import (
	"log/slog"
	"net"
	"net/netip"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

// Mode says by which hooks packets take the fast path.
type Mode string

// The modes of the fast path.
const (
	// ModeAuto uses native XDP on an uplink whose frames carry complete
	// checksums, tcx elsewhere.
	ModeAuto Mode = "auto"
	// ModeXDP insists on native XDP on the uplinks and adds it to the host
	// veths, for pods that send xdp_frames.
	ModeXDP Mode = "xdp"
	// ModeTCX uses tcx everywhere.
	ModeTCX Mode = "tcx"
	// ModeOff leaves every packet to the kernel.
	ModeOff Mode = "off"
)

// Conf is one network's configuration, checked and with its defaults set.
type Conf struct {
	// CNIVersion is the version that results and errors are written in.
	CNIVersion string
	// Name of the network.
	Name string
	// Type is the plugin's name as the configuration gives it.
	Type string

	// MTU of the pod's non-local routes in bytes; 0 takes the uplink's.
	MTU int
	// LocalMTU between pods of one node.
	LocalMTU LocalMTU
	// IPMasq hides the pods behind the node's address when they talk to
	// anything outside their own subnets.
	IPMasq bool
	// Uplinks that carry the node's traffic; empty takes the devices of the
	// default routes.
	Uplinks []Uplink
	// FastPath settings.
	FastPath FastPath
	// Required makes a chained ADD fail where the fast path cannot be armed.
	Required bool
	// DNS is passed on in the result.
	DNS types.DNS
	// IPAMType names the address manager.
	IPAMType string
	// LogLevel and LogFile of the plugin; an empty file logs nothing.
	LogLevel slog.Level
	LogFile  string

	// Runtime holds what the runtime asked for this attachment.
	Runtime Runtime
	// PrevResult is the result of the plugin before this one, or of ADD when
	// the verb is CHECK or DEL; nil when there is none.
	PrevResult types.Result
	// ValidAttachments of a GC; nil when the configuration has no list, which
	// is not the same as an empty one.
	ValidAttachments []types.GCAttachment

	// Raw is the configuration as read, for a delegated address manager.
	Raw []byte
}

// LocalMTU is the MTU of the routes between pods of one node.
type LocalMTU struct {
	// Off keeps local routes at the MTU of all others.
	Off bool
	// Bytes is the MTU; 0 means the largest that a veth can have.
	Bytes int
}

// Uplink is a device that leads out of the node.
type Uplink struct {
	// Name of the device.
	Name string
	// Mode for this uplink; empty takes the mode of the fast path.
	Mode Mode
}

// FastPath settings.
type FastPath struct {
	// Mode of the fast path.
	Mode Mode
	// Revalidate is how long a flow is repeated without the kernel having
	// forwarded one of its packets.
	Revalidate time.Duration
	// MaxFlows that can be learned in each address family.
	MaxFlows uint32
	// ExcludeMark holds bits of the packet mark; a packet that carries one of
	// them is never learned from. 0 excludes nothing.
	ExcludeMark uint32
}

// Runtime is what the runtime asked for one attachment, by runtimeConfig or
// CNI_ARGS.
type Runtime struct {
	// IPs asked for, with prefix length where one was given (else the whole
	// address).
	IPs []netip.Prefix
	// MAC of the pod's interface; nil lets the kernel choose.
	MAC net.HardwareAddr
	// Bandwidth limits; nil when there are none.
	Bandwidth *Bandwidth
	// FastPathOff opts the pod out (runtimeConfig.fastPath "off", or
	// FAST_PATH=off in CNI_ARGS).
	FastPathOff bool
}

// Bandwidth limits of one pod. Rates are in bits per second, bursts in bits,
// as the capability convention has them; 0 means no limit in that direction.
type Bandwidth struct {
	IngressRate, IngressBurst uint64
	EgressRate, EgressBurst   uint64
}
