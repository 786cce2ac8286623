// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
)

const (
	// busyAttempts and busyWait are for a plugin that somebody is writing just now.
	busyAttempts = 6
	busyWait     = time.Second
)

// program is a plugin that is called by the CNI protocol. The library's package invoke does
// the same, but brings tracing along and with it an HTTP client and TLS, whose initialisation
// every call of xveth would pay for, those without a plugin to call too.
type program struct {
	path string
	env  []string
}

// find looks for a plugin in the directories of CNI_PATH.
func find(name, cniPath string) (string, error) {
	if strings.ContainsRune(name, os.PathSeparator) {
		return "", errors.New("a name cannot hold a slash")
	}
	for _, dir := range filepath.SplitList(cniPath) {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path, nil
		}
	}
	return "", fmt.Errorf("it is not in CNI_PATH %q", cniPath)
}

// environ is that of this process with the variables of the protocol.
func environ(a *skel.CmdArgs, verb, cniArgs string) []string {
	return append(os.Environ(), // of two values the last one counts
		"CNI_COMMAND="+verb,
		"CNI_CONTAINERID="+a.ContainerID,
		"CNI_NETNS="+a.Netns,
		"CNI_IFNAME="+a.IfName,
		"CNI_ARGS="+cniArgs,
		"CNI_PATH="+a.Path,
	)
}

// run calls the plugin and returns what it answers. An error that it reports is returned
// as it came.
func (p *program) run(ctx context.Context, stdin []byte) ([]byte, error) {
	for attempt := 1; ; attempt++ {
		var stdout, stderr bytes.Buffer
		c := exec.CommandContext(ctx, p.path)
		c.Env, c.Stdin, c.Stdout, c.Stderr = p.env, bytes.NewReader(stdin), &stdout, &stderr
		err := c.Run()
		if errors.Is(err, syscall.ETXTBSY) && attempt < busyAttempts {
			select {
			case <-time.After(busyWait):
				continue
			case <-ctx.Done():
			}
		}
		if err != nil {
			return nil, p.reported(err, stdout.Bytes(), stderr.String())
		}
		_, _ = stderr.WriteTo(os.Stderr) // what it logs is for whoever called us
		return stdout.Bytes(), nil
	}
}

// reported is the error that a plugin wrote, or else one made of what is known.
func (p *program) reported(err error, stdout []byte, stderr string) error {
	var said types.Error
	switch parseErr := json.Unmarshal(stdout, &said); {
	case len(stdout) == 0 && stderr == "":
		return cniError(types.ErrInternal, "call ipam plugin %q: %w", p.path, err)
	case len(stdout) == 0:
		return cniError(types.ErrInternal, "call ipam plugin %q: %w: %s", p.path, err, strings.TrimSpace(stderr))
	case parseErr != nil:
		return cniError(types.ErrInternal, "call ipam plugin %q: %w, and its answer %q is no error of CNI: %w", p.path, err, stdout, parseErr)
	}
	return &said
}
