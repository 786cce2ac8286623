// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/xveth/xveth/pkg/datapath"
	"github.com/xveth/xveth/test/rig"
)

// docsElsewhere are the commands of the documentation that TestDocsCommands does not run, by
// their beginning, and why.
var docsElsewhere = map[string]string{
	"make build":             "compiles all; what it makes is what is tested here",
	"sudo bin/xvethctl demo": "takes 40 s: TestCtlDemo",
	"xvethctl demo":          "takes 40 s: TestCtlDemo",
	"xvethctl bench run":     "measures for seconds to an hour: TestBench",
	"xvethctl metrics  ":     "serves until it is stopped: TestMetricsServe",
	"sudo bin/xvethctl top":  "needs a terminal: TestTopScreen",
}

// docsPages has the pages by name, but for the one that xvethctl bench report writes: it
// repeats the commands by which it was measured.
func docsPages(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	pages := map[string]string{}
	for _, p := range append(paths, "../../README.md") {
		text, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		if name := filepath.Base(p); name != "benchmarks.md" {
			pages[name] = string(text)
		}
	}
	return pages
}

// docsCommands lists the commands of a page: the lines of its sh blocks, and in blocks
// without a language those behind "$ ".
func docsCommands(page string) (all []string) {
	lang, inside := "", false
	for line := range strings.Lines(page) {
		line = strings.TrimSpace(line)
		if mark, ok := strings.CutPrefix(line, "```"); ok {
			lang, inside = mark, !inside
			continue
		}
		command, prompted := strings.CutPrefix(line, "$ ")
		switch {
		case !inside, lang != "" && lang != "sh", lang == "" && !prompted:
		case command != "" && !strings.HasPrefix(command, "#"):
			all = append(all, command)
		}
	}
	return all
}

// TestDocsCommands runs every command of the documentation, page by page and in its order,
// on a node with two pods that talk.
func TestDocsCommands(t *testing.T) {
	t.Parallel()
	r, p, _ := warmHostPort(t)
	node(t, r, `for dir in etc opt; do
		mkdir -p /run/xveth-test/$dir/upper /run/xveth-test/$dir/work &&
		mount -t overlay -o lowerdir=/$dir,upperdir=/run/xveth-test/$dir/upper,workdir=/run/xveth-test/$dir/work overlay /$dir || exit
	done`)
	t.Cleanup(func() { node(t, r, "umount /etc /opt; rm -r /run/xveth-test") })
	unused := map[string]bool{}
	for begin := range docsElsewhere {
		unused[begin] = true
	}
	ran := 0
	pages := docsPages(t)
	for _, name := range slices.Sorted(maps.Keys(pages)) {
		for _, command := range docsCommands(pages[name]) {
			if begin := docsSkipped(command); begin != "" {
				delete(unused, begin)
				continue
			}
			docsReady(t, r, p)
			docsRun(t, r, name, command)
			ran++
		}
	}
	for begin := range unused {
		t.Errorf("no page has a command that begins with %q", begin)
	}
	const atLeast = 10
	if ran < atLeast {
		t.Errorf("%d commands were found, which cannot be all", ran)
	}
}

// docsSkipped finds what says that a command is not run here.
func docsSkipped(command string) string {
	for begin := range docsElsewhere {
		if strings.HasPrefix(command, begin) {
			return begin
		}
	}
	return ""
}

// docsReady arms the node again after a command that took the fast path off it.
func docsReady(t *testing.T, r *rig.Rig, p *rig.Pod) {
	t.Helper()
	d, err := datapath.Open(r.Node.Path(datapath.DefaultDir))
	if err == nil {
		d.Close()
		return
	}
	if err := p.Del(ctxOf(t)); err != nil {
		t.Fatal(err)
	}
	if err := p.Add(ctxOf(t), r.Conf(nil)); err != nil {
		t.Fatal(err)
	}
}

// docsRun runs a command as a user's shell does, with the binaries where make build and
// make install put them.
func docsRun(t *testing.T, r *rig.Rig, page, command string) {
	t.Helper()
	const within = 20 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	line := strings.ReplaceAll(command, "sudo ", "")
	line = strings.ReplaceAll(line, "bin/xvethctl", "xvethctl")
	out, err := r.Node.Run(ctx, "env", "PATH="+plugins+":"+os.Getenv("PATH"), "bash", "-c", line)
	if err != nil {
		t.Errorf("%s: %s: %v\n%s", page, command, err, out)
	}
}

// TestDocsMan makes manual pages and the completion of each shell. Every command that
// docs/xvethctl.md lists has a page.
func TestDocsMan(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "man")
	run := func(args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(ctxOf(t), filepath.Join(plugins, "xvethctl"), args...).Output()
		if err != nil {
			t.Fatalf("xvethctl %v: %v", args, err)
		}
		return string(out)
	}
	run("man", dir)
	page := docsPages(t)["xvethctl.md"]
	listed := 0
	for line := range strings.Lines(page) {
		name, ok := strings.CutPrefix(line, "| `xvethctl ")
		name, _, closed := strings.Cut(name, "` |")
		if !ok || !closed || strings.Contains(name, " ") {
			continue
		}
		listed++
		text, err := os.ReadFile(filepath.Join(dir, "xvethctl-"+name+".8"))
		if err != nil {
			t.Error(err)
		} else if !strings.Contains(string(text), "SYNOPSIS") || !strings.Contains(string(text), name) {
			t.Errorf("the page of %s:\n%s", name, text)
		}
	}
	const atLeast = 10
	if listed < atLeast {
		t.Errorf("docs/xvethctl.md lists %d commands", listed)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if script := run("completion", shell); !strings.Contains(script, "xvethctl") {
			t.Errorf("completion of %s:\n%s", shell, script)
		}
	}
	for _, c := range []struct{ line, want string }{
		{"to", "top"}, {"top --sort b", "bits"}, {"flows --proto u", "udp"}, {"status -o j", "json"},
	} {
		if got := run(append([]string{"__complete"}, strings.Fields(c.line)...)...); !strings.Contains(got, c.want) {
			t.Errorf("%q is completed to %q, without %q", c.line, got, c.want)
		}
	}
}

// TestDocsSecurity finds every test that docs/security.md names.
func TestDocsSecurity(t *testing.T) {
	t.Parallel()
	var sources strings.Builder
	for _, pattern := range []string{"*_test.go", "../../pkg/*/*_test.go"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range paths {
			text, err := os.ReadFile(p)
			if err != nil {
				t.Fatal(err)
			}
			sources.Write(text)
		}
	}
	names := regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9]+)`").FindAllStringSubmatch(docsPages(t)["security.md"], -1)
	if len(names) == 0 {
		t.Error("the page names no test")
	}
	for _, m := range names {
		if !strings.Contains(sources.String(), "\nfunc "+m[1]+"(") {
			t.Errorf("the page names %s, which does not exist", m[1])
		}
	}
}

// TestSecurityModes looks at who may read and write what the plugin keeps on a node.
func TestSecurityModes(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "log")
	r := newRig(t, map[string]any{"logFile": log, "logLevel": "debug"})
	addPod(t, r, "a", nil)
	find := "find /sys/fs/bpf/xveth /run/xveth /var/lib/cni/networks/rig/10* " + log
	open := node(t, r, find+" -perm /077")
	if open != "" {
		t.Errorf("open to others than root:\n%s", open)
	}
	const atLeast = 10
	if seen := strings.Count(node(t, r, find), "\n"); seen < atLeast {
		t.Errorf("only %d files were looked at", seen)
	}
}
