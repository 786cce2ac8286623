// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/test/rig"
)

const (
	// metaPatience is how long a probe waits before it says that there is no answer.
	metaPatience = 2 * time.Second
	// metaSureOf is how long one waits that has had answers before: on a busy machine they
	// may be late.
	metaSureOf = 8 * time.Second
	// metaAgain is the time between two datagrams that wait for one.
	metaAgain = 200 * time.Millisecond
	// metaHead is how many bytes of an answer say whom the server saw.
	metaHead = 64
)

// metaNothing is the verdict about what does not answer.
const metaNothing = "nothing"

// metaProbe is one way to reach something, or not.
type metaProbe struct {
	name  string
	from  *rig.Host
	proto string // tcp, udp or icmp
	to    netip.AddrPort
	// routed says that the node forwards the packets, so that they can be fast.
	routed bool
	// turned says that the packets go back to the pods they come from. A bridge does that by
	// itself when br_netfilter has translated them, and that stays with the kernel.
	turned bool
}

// metaTalk is a probe that got an answer and goes on.
type metaTalk struct {
	metaProbe
	conn net.Conn
	// seen is whom the server sees.
	seen string
	wait time.Duration
}

// metaIn runs a function in a host's network namespace without keeping the host's own
// thread busy.
func metaIn(h *rig.Host, f func() error) error {
	done := make(chan error, 1)
	go func() {
		// The thread ends with the goroutine, because it stays locked.
		runtime.LockOSThread()
		if err := unix.Setns(h.NetnsFD(), unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

// metaServe answers by TCP and UDP with the client's address, as the server sees it, and
// what the client sent.
func metaServe(t *testing.T, h *rig.Host, at netip.AddrPort) {
	t.Helper()
	head := func(a netip.AddrPort) []byte { return []byte(fmt.Sprintf("%-*s", metaHead, a.Addr())) }
	answerUDP(t, h, at, func(from netip.AddrPort, message []byte) []byte { return append(head(from), message...) })
	tcp, err := h.ListenTCP(at)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); tcp.Close() })
	go func() {
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			context.AfterFunc(ctx, func() { c.Close() })
			go func() {
				_, _ = c.Write(head(addrPortOf(c.RemoteAddr())))
				_, _ = io.Copy(c, c)
				c.Close()
			}()
		}
	}()
}

// metaVerdict puts into words what an error says about a path.
func metaVerdict(err error) string {
	for is, word := range map[error]string{
		unix.ECONNREFUSED: "refused", unix.EHOSTUNREACH: "unreachable", unix.ENETUNREACH: "no route",
		unix.EACCES: "prohibited", unix.EPERM: "prohibited", unix.ECONNRESET: "reset",
		os.ErrDeadlineExceeded: metaNothing,
	} {
		if errors.Is(err, is) {
			return word
		}
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return metaNothing
	}
	return err.Error()
}

// cold makes first contact. Without an answer the verdict says why; with one the talk can
// go on.
func (p metaProbe) cold(ctx context.Context) (*metaTalk, string) {
	if p.proto == "icmp" {
		return nil, p.ping(ctx, "-c1")
	}
	talk := &metaTalk{metaProbe: p, wait: metaPatience}
	err := metaIn(p.from, func() (err error) {
		talk.conn, err = (&net.Dialer{Timeout: metaPatience}).Dial(p.proto, p.to.String())
		return err
	})
	if err != nil {
		return nil, metaVerdict(err)
	}
	if talk.seen, err = talk.greet(); err != nil {
		talk.close()
		return nil, metaVerdict(err)
	}
	return talk, "answers, sees " + talk.seen
}

// ping sends echo requests; all must be answered.
func (p metaProbe) ping(ctx context.Context, args ...string) string {
	_, err := p.from.Run(ctx, "ping", append([]string{"-n", "-W2", p.to.Addr().String()}, args...)...)
	if err != nil {
		return metaNothing
	}
	return "answers"
}

// greet learns whom the server sees.
func (k *metaTalk) greet() (string, error) {
	head := make([]byte, metaHead)
	if k.proto == "udp" {
		answer, err := k.ask([]byte("hello"))
		if err != nil {
			return "", err
		}
		head = answer[:metaHead]
	} else if err := k.readFull(head); err != nil {
		return "", err
	}
	return strings.TrimSpace(string(head)), nil
}

func (k *metaTalk) readFull(buf []byte) error {
	if err := k.conn.SetReadDeadline(time.Now().Add(k.wait)); err != nil {
		return err
	}
	_, err := io.ReadFull(k.conn, buf)
	return err
}

// ask sends a datagram until it is answered. Late answers to earlier ones are left out.
func (k *metaTalk) ask(msg []byte) ([]byte, error) {
	buf := make([]byte, 65536)
	for end := time.Now().Add(k.wait); ; {
		if _, err := k.conn.Write(msg); err != nil {
			return nil, err
		}
		if err := k.conn.SetReadDeadline(time.Now().Add(metaAgain)); err != nil {
			return nil, err
		}
		for {
			n, err := k.conn.Read(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) && time.Now().Before(end) {
				break
			}
			if err != nil {
				return nil, err
			}
			if n >= metaHead && bytes.Equal(buf[metaHead:n], msg) {
				return buf[:n], nil
			}
		}
	}
}

// again sends a message and checks the answer to it, and who the server sees.
func (k *metaTalk) again(msg []byte) error {
	if k.proto == "tcp" {
		if _, err := k.conn.Write(msg); err != nil {
			return err
		}
		got := make([]byte, len(msg))
		if err := k.readFull(got); err != nil {
			return err
		}
		if !bytes.Equal(got, msg) {
			return errors.New("another payload came back")
		}
		return nil
	}
	answer, err := k.ask(msg)
	if err != nil {
		return err
	}
	if seen := strings.TrimSpace(string(answer[:metaHead])); seen != k.seen {
		return fmt.Errorf("the server saw %s and sees %s", k.seen, seen)
	}
	return nil
}

func (k *metaTalk) close() {
	if tcp, ok := k.conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = k.conn.Close()
}
