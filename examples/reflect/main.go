// SPDX-License-Identifier: Apache-2.0

// Command reflect sends UDP packets to the echo port back to where they came from, without
// the kernel's stack: reflect -dev eth0. It serves queue 0 of the interface.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"github.com/xveth/xveth/pkg/afxdp"
	"github.com/xveth/xveth/pkg/bulk"
)

func main() {
	dev := flag.String("dev", "eth0", "interface")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := reflect(ctx, *dev); !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "reflect:", err)
		os.Exit(1)
	}
}

func reflect(ctx context.Context, dev string) error {
	pool, err := bulk.NewPool(bulk.Config{Frames: 8192, FrameSize: 4096, Mapped: true})
	if err != nil {
		return err
	}
	umem, err := afxdp.NewUMEM(pool, afxdp.Mode{MultiBuffer: true})
	if err != nil {
		return err
	}
	socket, err := umem.Open(afxdp.Config{Interface: dev, Queue: 0})
	if err != nil {
		return err
	}
	defer socket.Close()
	program, err := afxdp.Attach(dev, afxdp.ProgramConfig{UDPPort: 7})
	if err != nil {
		return err
	}
	defer program.Close()
	if err := program.Serve(socket); err != nil {
		return err
	}
	for frames := make([]*bulk.Frame, 64); ; {
		n, err := socket.Poll(ctx, frames)
		if err != nil {
			return err
		}
		for _, f := range frames[:n] {
			turn(f.Data())
		}
		sent, err := socket.SendAll(ctx, frames[:n])
		bulk.FreeBulk(frames[sent:n])
		if err != nil {
			return err
		}
	}
}

// turn swaps source and destination. The checksums stay right: they are sums.
func turn(b []byte) {
	ip, addr := 14+12, 4
	if b[14]>>4 == 6 {
		ip, addr = 14+8, 16
	}
	for at, n := range map[int]int{0: 6, ip: addr, ip + 2*addr: 2} {
		for i := at; i < at+n; i++ {
			b[i], b[i+n] = b[i+n], b[i]
		}
	}
}
