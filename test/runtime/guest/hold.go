// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

// holdName is the name under which this program is a plugin.
const holdName = "hold"

// holdConf is the plugin's configuration.
type holdConf struct {
	types.NetConf
	// Dir is a folder: while it has a file with the name of a verb, calls of that verb
	// wait. A call that waits says so by a file of that name with ".held" behind it.
	Dir string `json:"dir"`
	// Fail lists the verbs that fail.
	Fail []string `json:"fail"`
}

// hold is a chained plugin that passes the result on, when it is let.
func hold() {
	verb := func(name string) func(*skel.CmdArgs) error {
		return func(args *skel.CmdArgs) error { return holdVerb(name, args) }
	}
	skel.PluginMainFuncs(skel.CNIFuncs{
		Add: verb("ADD"), Check: verb("CHECK"), Del: verb("DEL"), GC: verb("GC"), Status: verb("STATUS"),
	}, version.All, "hold: a plugin that waits or fails")
}

func holdVerb(verb string, args *skel.CmdArgs) error {
	var c holdConf
	if err := json.Unmarshal(args.StdinData, &c); err != nil {
		return err
	}
	if slices.Contains(c.Fail, verb) {
		return errors.New("as always")
	}
	if err := wait(filepath.Join(c.Dir, verb)); err != nil || verb != "ADD" {
		return err
	}
	if err := version.ParsePrevResult(&c.NetConf); err != nil {
		return err
	}
	if c.PrevResult == nil {
		return fmt.Errorf("%s: no plugin is in front of it", holdName)
	}
	return types.PrintResult(c.PrevResult, c.CNIVersion)
}

// wait waits while a file is there.
func wait(file string) error {
	if _, err := os.Stat(file); err != nil {
		return nil
	}
	if err := os.WriteFile(file+".held", nil, 0o644); err != nil {
		return err
	}
	for {
		if _, err := os.Stat(file); err != nil {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
}
