// SPDX-License-Identifier: Apache-2.0

package netconf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
)

// FuzzParse looks for panics, for errors without a code, and for accepted
// configurations that mean something else once libcni has rewritten them.
func FuzzParse(f *testing.F) {
	for _, v := range Versions() {
		f.Add([]byte(fmt.Sprintf(fullConf, v)), "IgnoreUnknown=1;IP=192.0.2.5")
	}
	f.Add([]byte(minimal("")), "MAC=02:00:00:00:00:01;FAST_PATH=off")
	for _, tc := range malformedCases(f) {
		f.Add([]byte(tc.Conf), tc.Args)
	}
	f.Fuzz(func(t *testing.T, text []byte, args string) {
		conf, err := Parse(text, args)
		if err != nil {
			var e *types.Error
			if !errors.As(err, &e) || e.Code == 0 || e.Msg == "" {
				t.Fatalf("got error %#v", err)
			}
			if !mayKeep(conf, err) {
				t.Fatalf("got %v beside error %v", conf, err)
			}
			return
		}
		again, err := Parse(rewrite(t, conf.Raw), args)
		if err != nil {
			t.Fatalf("accepted, but not once rewritten: %v", err)
		}
		if conf.PrevResult != nil {
			printAll(t, conf.PrevResult)
			printAll(t, again.PrevResult)
		}
		conf.Raw, again.Raw = nil, nil
		if !reflect.DeepEqual(conf, again) {
			t.Fatalf("got %+v\nonce rewritten %+v", conf, again)
		}
	})
}

// rewrite sorts the keys and strips white space, as libcni does.
func rewrite(t *testing.T, text []byte) []byte {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		t.Fatal(err)
	}
	if out.Len() > maxText {
		t.Skip("grew beyond the limit")
	}
	return out.Bytes()
}
