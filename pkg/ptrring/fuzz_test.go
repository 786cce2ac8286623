// SPDX-License-Identifier: Apache-2.0

package ptrring

import "testing"

// FuzzRing holds a ring against a slice, call by call.
func FuzzRing(f *testing.F) {
	f.Add(uint8(4), false, []byte{1, 3, 3, 2, 7, 9, 6, 2, 8, 5})
	f.Add(uint8(40), true, []byte{1, 30, 3, 20, 7, 200, 6, 20, 8, 50})
	f.Fuzz(func(t *testing.T, size uint8, exact bool, calls []byte) {
		r, err := New[entry](int(size), Options{Exact: exact})
		if err != nil {
			if size > 0 {
				t.Fatal(err)
			}
			return
		}
		state := ringState{size: int(size)}
		p := &player{ring: r}
		for i := 0; i+1 < len(calls); i += 2 {
			in := ringInput{kind: opKind(calls[i] % byte(opResize+1)), n: int(calls[i+1])}
			var batch []*entry
			switch in.kind {
			case opProduce:
				batch = entries(i, 1)
			case opProduceBatch:
				batch = entries(i, in.n%64)
			case opUnconsume:
				batch, p.taken = p.taken, nil
			case opConsume:
				in.n = 1
			case opResize:
				in.n = 1 + in.n%80
			}
			in.ids = ids(batch)
			out := p.call(in, batch)
			slack := 0
			if !exact && state.size >= 2*HandBack {
				slack = HandBack - 1
			}
			ok, next := state.step(in, out, slack)
			if !ok {
				t.Fatalf("call %d: %+v -> %+v in %+v", i/2, in, out, state)
			}
			state = next.(ringState)
		}
		if got := drain(r); got != state.ids {
			t.Fatalf("left %q, want %q", got, state.ids)
		}
	})
}
