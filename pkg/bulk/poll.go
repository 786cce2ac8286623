// SPDX-License-Identifier: Apache-2.0

package bulk

import (
	"fmt"
	"slices"

	"golang.org/x/sys/cpu"

	"github.com/xveth/xveth/pkg/ptrring"
)

const (
	// MaxBatch is the largest batch of a Poller.
	MaxBatch = 64
	// DefaultBatch is the batch of a Poller that is not told one. The review of the
	// kernel's patch asked for 8 or 16: see the batch sizes of the ring's benchmark.
	DefaultBatch = 16
)

// Verdict says what becomes of a frame. The numbers are those of enum xdp_action.
type Verdict uint32

// The verdicts. Anything else counts as Aborted.
const (
	// Aborted drops the frame because the function went wrong.
	Aborted Verdict = 0
	// Drop drops the frame.
	Drop Verdict = 1
	// Pass makes a packet of the frame and delivers it.
	Pass Verdict = 2
	// Tx sends the frame back through PollConfig.Tx.
	Tx Verdict = 3

	redirect Verdict = 4
)

// targetShift is where in a Verdict the target of a redirect starts.
const targetShift = 8

// Redirect sends the frame to PollConfig.Targets[target].
func Redirect(target uint) Verdict { return redirect | Verdict(target)<<targetShift }

// Allocator is where a Poller gets packets from. AllocBulk returns how many it got.
type Allocator interface {
	AllocBulk(dst []*Packet) int
}

// PollConfig joins a ring of frames to what happens to them.
type PollConfig struct {
	// Ring is where frames come from. The Poller is one of its consumers.
	Ring *ptrring.Ring[Frame]
	// Verdict decides on a frame. It may change the frame and must not keep it.
	Verdict func(*Frame) Verdict
	// Packets gives a packet for each frame that passes.
	Packets Allocator
	// Build, if set, fills in a fresh packet. An error drops that packet alone.
	Build func(*Packet) error
	// Deliver takes over packets in the order in which they came. It must not keep
	// the slice.
	Deliver func([]*Packet)
	// Tx sends what got the verdict Tx. The Poller alone uses it, and the targets.
	Tx *TxQueue
	// Targets send what was redirected.
	Targets []*TxQueue
	// Batch is how many frames are collected before packets are allocated: 1 to
	// MaxBatch, 0 means DefaultBatch.
	Batch int
}

// PollStats counts entries of the ring by what became of them. Consumed is the sum of all
// others.
type PollStats struct {
	Consumed uint64
	// Passed frames became packets that were delivered.
	Passed uint64
	// Packets were packets already and were delivered.
	Packets uint64
	// Sent frames left by Tx or by a target.
	Sent uint64
	// Dropped frames got the verdict Drop.
	Dropped uint64
	// Aborted frames got no usable verdict, or there was nowhere to send them.
	Aborted uint64
	// AllocDrops are frames for which there was no packet.
	AllocDrops uint64
	// BuildDrops are frames whose packet could not be built.
	BuildDrops uint64
	// TxDrops are frames that a full or failing queue did not send.
	TxDrops uint64
}

// Poller moves entries of a ring to where they belong, some at a time. One goroutine uses
// it. Nothing stays in it between two calls of Poll.
type Poller struct {
	_ cpu.CacheLinePad
	PollConfig
	stats PollStats

	in    [MaxBatch]*Frame
	drops [MaxBatch]*Frame
	heads [MaxBatch]*Packet
	// pass are the frames that wait for a packet, and place is where in out each
	// goes: packets that came in between keep their place in the order.
	pass   [MaxBatch]*Frame
	place  [MaxBatch]uint8
	out    [MaxBatch]*Packet
	nDrops int
	nPass  int
	nOut   int
	_      cpu.CacheLinePad
}

// NewPoller makes a Poller.
func NewPoller(c PollConfig) (*Poller, error) {
	if c.Batch == 0 {
		c.Batch = DefaultBatch
	}
	switch {
	case c.Ring == nil || c.Verdict == nil:
		return nil, fmt.Errorf("make poller: %w: ring and verdict are needed", ErrConfig)
	case c.Batch < 1 || c.Batch > MaxBatch:
		return nil, fmt.Errorf("make poller: %w: batch of 1 to %d", ErrConfig, MaxBatch)
	case c.Deliver == nil || c.Packets == nil:
		return nil, fmt.Errorf("make poller: %w: packets and their delivery are needed", ErrConfig)
	case slices.Contains(c.Targets, nil):
		return nil, fmt.Errorf("make poller: %w: a target is nil", ErrConfig)
	}
	return &Poller{PollConfig: c}, nil
}

// Poll handles up to budget entries of the ring and returns how many it consumed: never
// more than budget, fewer only if the ring ran empty. The budget counts entries and not
// batches. Before it returns, everything that was collected is delivered, sent or freed.
//
// The kernel walks its ring one by one, because taking several under the same lock is no
// faster there. Here it is (see package ptrring), so a batch is what is taken at once, and
// also what is collected before packets are allocated.
func (p *Poller) Poll(budget int) int {
	done := 0
	for done < budget {
		n := p.Ring.ConsumeBatch(p.in[:min(p.Batch, budget-done)])
		if n == 0 {
			break
		}
		done += n
		for _, f := range p.in[:n] {
			p.handle(f)
		}
		// All of a batch at once: the frames are still in the cache.
		p.flushPass()
		p.flushDrops()
	}
	p.flushTx()
	p.stats.Consumed += uint64(max(done, 0))
	return max(done, 0)
}

// Stats returns the counts so far. Only the goroutine that polls may call it.
func (p *Poller) Stats() PollStats { return p.stats }

// handle looks at one entry. At most Batch entries are handled between two flushes, so
// that no list overflows.
func (p *Poller) handle(f *Frame) {
	if f.pkt != nil {
		p.out[p.nOut] = f.pkt
		p.nOut++
		p.stats.Packets++
		return
	}
	switch v := p.Verdict(f); v & (1<<targetShift - 1) {
	case Pass:
		p.pass[p.nPass] = f
		p.place[p.nPass] = uint8(p.nOut)
		p.nPass++
		p.nOut++
	case Drop:
		p.stats.Dropped++
		p.drop(f)
	case Tx:
		p.send(p.Tx, f)
	case redirect:
		var q *TxQueue
		if i := v >> targetShift; int(i) < len(p.Targets) {
			q = p.Targets[i]
		}
		p.send(q, f)
	default:
		p.stats.Aborted++
		p.drop(f)
	}
}

func (p *Poller) drop(f *Frame) {
	if p.nDrops == len(p.drops) {
		p.flushDrops()
	}
	p.drops[p.nDrops] = f
	p.nDrops++
}

func (p *Poller) flushDrops() {
	FreeBulk(p.drops[:p.nDrops])
	p.nDrops = 0
}

// send counts a frame as sent when it is queued; unsent corrects that.
func (p *Poller) send(q *TxQueue, f *Frame) {
	if q == nil {
		p.stats.Aborted++
		p.drop(f)
		return
	}
	p.stats.Sent++
	if left, _ := q.Add(f); left != nil {
		p.unsent(left)
	}
}

func (p *Poller) unsent(frames []*Frame) {
	p.stats.Sent -= uint64(len(frames))
	p.stats.TxDrops += uint64(len(frames))
	FreeBulk(frames)
}

func (p *Poller) flushTx() {
	if p.Tx != nil {
		left, _ := p.Tx.Flush()
		p.flushed(left)
	}
	for _, q := range p.Targets {
		left, _ := q.Flush()
		p.flushed(left)
	}
}

func (p *Poller) flushed(left []*Frame) {
	if left != nil {
		p.unsent(left)
	}
}

// flushPass allocates packets for all frames that passed, builds and delivers them. Frames
// for which there is no packet are dropped: those and no others.
func (p *Poller) flushPass() {
	if p.nOut == 0 {
		return
	}
	got, failed := 0, 0
	if p.nPass > 0 {
		got = p.Packets.AllocBulk(p.heads[:p.nPass])
	}
	for i, k := range p.heads[:got] {
		k.Build(p.pass[i])
		if p.Build != nil && p.Build(k) != nil {
			p.stats.BuildDrops++
			failed++
			k.Free()
			k = nil
		}
		p.out[p.place[i]] = k
	}
	for i := got; i < p.nPass; i++ {
		p.out[p.place[i]] = nil
		p.drop(p.pass[i])
	}
	p.stats.Passed += uint64(got - failed)
	p.stats.AllocDrops += uint64(p.nPass - got)
	out := p.out[:p.nOut]
	if failed > 0 || got < p.nPass {
		out = compact(out)
	}
	p.nOut, p.nPass = 0, 0
	if len(out) > 0 {
		p.Deliver(out)
	}
}

// compact moves the packets of a list together and keeps their order.
func compact(list []*Packet) []*Packet {
	n := 0
	for _, k := range list {
		if k != nil {
			list[n] = k
			n++
		}
	}
	return list[:n]
}
