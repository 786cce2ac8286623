// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/xveth/xveth/pkg/netconf"
)

// plugin is an ipam plugin that notes how it was called.
type plugin struct {
	t   *testing.T
	dir string
}

// newPlugin writes one that answers every verb with the text and status.
func newPlugin(t *testing.T, answer string, status int) *plugin {
	t.Helper()
	p := &plugin{t, t.TempDir()}
	script := fmt.Sprintf(`#!/bin/sh
cat > %[1]s/stdin.$CNI_COMMAND
echo "$CNI_CONTAINERID|$CNI_NETNS|$CNI_IFNAME|$CNI_ARGS|$CNI_PATH" > %[1]s/env.$CNI_COMMAND
echo $CNI_COMMAND >> %[1]s/verbs
cat <<'EOF'
%[2]s
EOF
exit %[3]d
`, p.dir, answer, status)
	if err := os.WriteFile(filepath.Join(p.dir, "fake"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *plugin) read(name string) string {
	data, _ := os.ReadFile(filepath.Join(p.dir, name))
	return strings.TrimSpace(string(data))
}

func (p *plugin) conf(cniVersion string) *netconf.Conf {
	return &netconf.Conf{
		CNIVersion: cniVersion, Name: "pods", IPAMType: "fake",
		Raw: fmt.Appendf(nil, `{"cniVersion":%q,"name":"pods","type":"xveth","ipam":{"type":"fake","x":1}}`, cniVersion),
	}
}

func (p *plugin) args() *skel.CmdArgs {
	return &skel.CmdArgs{ContainerID: "a", IfName: "eth0", Netns: "/n", Args: "IgnoreUnknown=1;FAST_PATH=off;K=v", Path: "/does/not/exist:" + p.dir}
}

func TestDelegate(t *testing.T) {
	t.Parallel()
	p := newPlugin(t, `{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.1.0.2/24","gateway":"10.1.0.1"}],"routes":[{"dst":"0.0.0.0/0"}]}`, 0)
	c, a := p.conf("1.1.0"), p.args()
	r, err := Add(t.Context(), c, a)
	if err != nil {
		t.Fatal(err)
	}
	if got := addrs(r); len(got) != 1 || got[0] != "10.1.0.2/24 via 10.1.0.1" || len(r.Routes) != 1 {
		t.Errorf("result %v %v", got, r.Routes)
	}
	for _, err := range []error{
		Check(t.Context(), c, a), Del(t.Context(), c, a), Status(t.Context(), c, a),
		GC(t.Context(), c, a, nil), GC(t.Context(), c, a, []types.GCAttachment{{ContainerID: "a", IfName: "eth0"}}),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	if got := strings.Join(strings.Fields(p.read("verbs")), " "); got != "ADD CHECK DEL STATUS GC" {
		t.Errorf("called for %s", got)
	}
	for _, verb := range []string{"ADD", "CHECK", "DEL"} {
		if got := p.read("stdin." + verb); got != string(c.Raw) {
			t.Errorf("%s got %s", verb, got)
		}
		if got, want := p.read("env."+verb), "a|/n|eth0|IgnoreUnknown=1;K=v|"+a.Path; got != want {
			t.Errorf("%s was called with %s, want %s", verb, got, want)
		}
	}
	var n types.NetConf
	if err := json.Unmarshal([]byte(p.read("stdin.GC")), &n); err != nil || len(n.ValidAttachments) != 1 || n.IPAM.Type != "fake" {
		t.Errorf("GC got %s: %v", p.read("stdin.GC"), err)
	}
}

func TestDelegateOldVersionHasNoGCAndStatus(t *testing.T) {
	t.Parallel()
	p := newPlugin(t, `{"code":4,"msg":"unknown CNI_COMMAND"}`, 1)
	if err := GC(t.Context(), p.conf("1.0.0"), p.args(), []types.GCAttachment{}); err != nil {
		t.Error(err)
	}
	if err := Status(t.Context(), p.conf("0.3.1"), p.args()); err != nil {
		t.Error(err)
	}
	if got := p.read("verbs"); got != "" {
		t.Errorf("called for %s", got)
	}
}

func TestDelegateErrorsArePassedOn(t *testing.T) {
	t.Parallel()
	p := newPlugin(t, `{"code":123,"msg":"no lease","details":"from fake"}`, 1)
	c, a := p.conf("1.1.0"), p.args()
	_, err := Add(t.Context(), c, a)
	wantCode(t, err, 123, "no lease")
	wantCode(t, Del(t.Context(), c, a), 123, "from fake")
	wantCode(t, Check(t.Context(), c, a), 123, "no lease")
	wantCode(t, Status(t.Context(), c, a), 123, "no lease")
	wantCode(t, GC(t.Context(), c, a, []types.GCAttachment{}), 123, "no lease")
}

func TestDelegateWithoutAddressIsUndone(t *testing.T) {
	t.Parallel()
	p := newPlugin(t, `{"cniVersion":"1.0.0"}`, 0)
	_, err := Add(t.Context(), p.conf("1.1.0"), p.args())
	wantCode(t, err, types.ErrInternal, "no address")
	if got := strings.Join(strings.Fields(p.read("verbs")), " "); got != "ADD DEL" {
		t.Errorf("called for %s", got)
	}
}

func TestDelegateResultWithoutVersion(t *testing.T) {
	t.Parallel()
	p := newPlugin(t, `{"ips":[{"address":"10.1.0.2/24","gateway":"10.1.0.1"}]}`, 0)
	r, err := Add(t.Context(), p.conf("1.0.0"), p.args())
	if err != nil {
		t.Fatal(err)
	}
	if got := addrs(r); len(got) != 1 || got[0] != "10.1.0.2/24 via 10.1.0.1" {
		t.Errorf("result %v", got)
	}
}

func TestDelegateAnswerIsNoResult(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{"", "null", "[]", "hello", `{"cniVersion":"9.9.9"}`} {
		p := newPlugin(t, answer, 0)
		_, err := Add(t.Context(), p.conf("1.0.0"), p.args())
		wantCode(t, err, types.ErrInternal, "fake")
		if got := strings.Join(strings.Fields(p.read("verbs")), " "); got != "ADD DEL" {
			t.Errorf("answer %q: called for %s", answer, got)
		}
	}
}

func TestDelegateFailsWithoutReport(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{"", "hello"} {
		p := newPlugin(t, answer, 3)
		wantCode(t, Del(t.Context(), p.conf("1.0.0"), p.args()), types.ErrInternal, "exit status 3")
	}
}

// A plugin that is being written just now is called again.
func TestDelegateBusy(t *testing.T) {
	t.Parallel()
	p := newPlugin(t, "", 0)
	path := filepath.Join(p.dir, "fake")
	script, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	open, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Del(ctx, p.conf("1.0.0"), p.args()); err == nil {
		t.Error("a call that was given up succeeded")
	}
	done := make(chan error)
	go func() { done <- Del(t.Context(), p.conf("1.0.0"), p.args()) }()
	if _, err := open.Write(script); err != nil {
		t.Error(err)
	}
	if err := open.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestDelegateNotFound(t *testing.T) {
	t.Parallel()
	p := newPlugin(t, "", 0)
	c := p.conf("1.1.0")
	for _, name := range []string{"missing", "../fake", ""} {
		c.IPAMType = name
		_, err := Add(t.Context(), c, p.args())
		wantCode(t, err, types.ErrInvalidNetworkConfig, name)
	}
	wantCode(t, Status(t.Context(), c, p.args()), types.ErrPluginNotAvailable, "")
}
