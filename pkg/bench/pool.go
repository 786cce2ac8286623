// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"sync"

	"github.com/xveth/xveth/pkg/bench/internal/pipeline"
	registry "github.com/xveth/xveth/pkg/bench/internal/registry/pipeline"
	"github.com/xveth/xveth/pkg/bulk"
)

const (
	poolFrames = 1024
	frameSize  = 2048
	headroom   = 256
	poolBatch  = 16
)

// poolScenario compares ways to allocate and free 16 frames, and two ways to find a frame's
// pool.
func poolScenario() (*scenario, error) {
	pool, err := newPool()
	if err != nil {
		return nil, err
	}
	owner, err := pipeline.NewDrop()
	if err != nil {
		return nil, fmt.Errorf("make pipeline: %w", err)
	}
	byID, err := registry.NewDrop()
	if err != nil {
		return nil, fmt.Errorf("make pipeline with a registry: %w", err)
	}
	return &scenario{
		params: map[string]any{"frames": poolFrames, "batch": poolBatch, "frame_size": frameSize},
		paths: []path{
			named("bulk", poolBulk(pool)),
			named("single", poolSingle(pool)),
			named("cache", poolCache(pool.NewCache(poolBatch))),
			named("mutex", poolMutex()),
			named("syncpool", poolSync()),
			{name: "owner", step: owner.Step, check: owner.Check},
			{name: "registry", step: byID.Step, check: byID.Check},
		},
		ratios: []ratio{
			{"bulk/single", "bulk", "single"},
			{"bulk/mutex", "bulk", "mutex"},
			{"bulk/syncpool", "bulk", "syncpool"},
			{"cache/syncpool", "cache", "syncpool"},
			{"owner/registry", "owner", "registry"},
		},
	}, nil
}

func newPool() (*bulk.Pool, error) {
	p, err := bulk.NewPool(bulk.Config{Frames: poolFrames, FrameSize: frameSize, Headroom: headroom})
	if err != nil {
		return nil, fmt.Errorf("make pool: %w", err)
	}
	return p, nil
}

func poolBulk(p *bulk.Pool) path {
	frames := make([]*bulk.Frame, poolBatch)
	return path{step: func() int {
		n := p.AllocBulk(frames)
		bulk.FreeBulk(frames[:n])
		return n
	}}
}

func poolSingle(p *bulk.Pool) path {
	frames := make([]*bulk.Frame, poolBatch)
	return path{step: func() int {
		for i := range frames {
			frames[i] = p.Alloc()
		}
		for _, f := range frames {
			f.Free()
		}
		return len(frames)
	}}
}

func poolCache(c *bulk.Cache) path {
	frames := make([]*bulk.Frame, poolBatch)
	return path{step: func() int {
		n := c.AllocBulk(frames)
		c.FreeBulk(frames[:n])
		return n
	}}
}

// buffer is what a plain program would keep in a sync.Pool or a list of its own: a buffer
// with the place of the data in it.
type buffer struct {
	b          []byte
	head, size uint32
}

func newBuffer() *buffer { return &buffer{b: make([]byte, frameSize)} }

// poolMutex is a free list behind a mutex, one buffer at a time.
func poolMutex() path {
	var mu sync.Mutex
	list := make([]*buffer, 0, poolFrames)
	for range poolFrames {
		list = append(list, newBuffer())
	}
	alloc := func() *buffer {
		mu.Lock()
		b := list[len(list)-1]
		list = list[:len(list)-1]
		mu.Unlock()
		b.head, b.size = headroom, 0
		return b
	}
	free := func(b *buffer) {
		mu.Lock()
		list = append(list, b)
		mu.Unlock()
	}
	buffers := make([]*buffer, poolBatch)
	return path{step: func() int {
		for i := range buffers {
			buffers[i] = alloc()
		}
		for _, b := range buffers {
			free(b)
		}
		return len(buffers)
	}}
}

// poolSync is sync.Pool, which has no batches.
func poolSync() path {
	p := sync.Pool{New: func() any { return newBuffer() }}
	buffers := make([]*buffer, poolBatch)
	return path{step: func() int {
		for i := range buffers {
			b := p.Get().(*buffer)
			b.head, b.size = headroom, 0
			buffers[i] = b
		}
		for _, b := range buffers {
			p.Put(b)
		}
		return len(buffers)
	}}
}
