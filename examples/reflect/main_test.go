// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/xveth/xveth/test/rig"
)

// A client on one end of a veth hears its own words from the other.
func TestReflect(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces")
	}
	server, client := host(t, "server"), host(t, "client")
	err := server.Do(func() error {
		v := netlink.NewVeth(netlink.LinkAttrs{Name: "eth0"})
		v.PeerName, v.PeerNamespace = "eth0", netlink.NsFd(client.NetnsFD())
		if err := netlink.LinkAdd(v); err != nil {
			return err
		}
		return up("192.0.2.1/24", "2001:db8::1/64")
	})
	if err == nil {
		err = client.Do(func() error {
			// As on a cable: the sum is complete, so the reflector need not touch it.
			return errors.Join(up("192.0.2.2/24", "2001:db8::2/64"),
				rig.Offload("eth0", map[string]bool{"tx-checksum-ip-generic": false}))
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Do(func() error { return reflect(ctx, "eth0") }) }()
	for _, to := range []string{"192.0.2.1:7", "[2001:db8::1]:7"} {
		talk(t, client, to)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func host(t *testing.T, name string) *rig.Host {
	h, err := rig.NewHost(name, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

func up(addrs ...string) error {
	l, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return err
	}
	for _, a := range addrs {
		if err := rig.AddAddr("eth0", netip.MustParsePrefix(a)); err != nil {
			return err
		}
	}
	return nil
}

// talk repeats a question until the answer comes: the reflector may not be there yet.
func talk(t *testing.T, h *rig.Host, to string) {
	var c net.Conn
	if err := h.Do(func() (err error) { c, err = net.Dial("udp", to); return err }); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	answer := make([]byte, 64)
	for range 50 {
		_, _ = c.Write([]byte("who is there?"))
		_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		if n, err := c.Read(answer); err == nil {
			if string(answer[:n]) != "who is there?" {
				t.Errorf("%s: %q", to, answer[:n])
			}
			return
		}
	}
	t.Errorf("%s does not answer", to)
}
