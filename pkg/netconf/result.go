// SPDX-License-Identifier: Apache-2.0

package netconf

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types040 "github.com/containernetworking/cni/pkg/types/040"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/containernetworking/cni/pkg/utils"
)

const (
	attachments = "cni.dev/valid-attachments"
	// attachmentsOld is what the spec called it by mistake; libcni sends both.
	attachmentsOld = "cni.dev/attachments"

	wantAttachments = `a list of objects {"containerID", "ifname"}`
	wantContainerID = "a container id: letters, digits and _ . - with a letter or digit first"
)

// readAttachments fills in the list of the key that it read last.
func readAttachments(c *Conf, n node) error {
	list, err := n.list(wantAttachments)
	if err != nil {
		return err
	}
	valid := make([]types.GCAttachment, 0, len(list))
	for _, item := range list {
		a, err := readAttachment(item)
		if err != nil {
			return err
		}
		valid = append(valid, a)
	}
	c.ValidAttachments = valid
	return nil
}

func readAttachment(n node) (types.GCAttachment, error) {
	var a types.GCAttachment
	obj, err := n.object()
	if err != nil {
		return a, err
	}
	id, ok := obj["containerID"]
	if !ok {
		return a, missing(join(n.path, "containerID"), wantContainerID)
	}
	if a.ContainerID, err = id.text(wantContainerID); err != nil {
		return a, err
	}
	if utils.ValidateContainerID(a.ContainerID) != nil {
		return a, id.invalid(wantContainerID)
	}
	name, ok := obj["ifname"]
	if !ok {
		return a, missing(join(n.path, "ifname"), wantDevice)
	}
	if a.IfName, err = name.text(wantDevice); err != nil {
		return a, err
	}
	if utils.ValidateInterfaceName(a.IfName) != nil {
		return a, name.invalid(wantDevice)
	}
	return a, nil
}

// readPrevResult reads a result in the version that it says it has, which need
// not be the configuration's: version.ParsePrevResult refuses such a pair.
func readPrevResult(c *Conf, n node) error {
	obj, err := n.object()
	if err != nil {
		return err
	}
	v := c.CNIVersion
	want := "one of " + strings.Join(Versions(), ", ")
	if given, ok := obj["cniVersion"]; ok {
		s, err := given.text(want)
		if err != nil {
			return err
		}
		if s != "" && !slices.Contains(Versions(), s) {
			return given.invalid(want)
		}
		if s != "" {
			v = s
		}
	}
	text, err := withVersion(obj, v)
	if err != nil {
		return errf(types.ErrInvalidNetworkConfig, "read \"prevResult\": %w", err)
	}
	result, err := create.Create(v, text)
	if err != nil {
		return errf(types.ErrInvalidNetworkConfig, "read \"prevResult\" of version %s: %q", v, shortenTo(err.Error(), maxCause))
	}
	if err := checkResult(result); err != nil {
		return errf(types.ErrInvalidNetworkConfig, "check \"prevResult\": %w", err)
	}
	c.PrevResult = result
	return nil
}

// withVersion returns the result as JSON with exactly one version in it,
// however its key is spelt: the reader of the library ignores case.
func withVersion(obj map[string]node, v string) ([]byte, error) {
	raws := map[string]json.RawMessage{}
	for key, n := range obj {
		if !strings.EqualFold(key, "cniVersion") {
			raws[key] = n.raw
		}
	}
	raws["cniVersion"] = json.RawMessage(`"` + v + `"`)
	return json.Marshal(raws)
}

// checkResult looks for what the library reads without complaint and then
// trips over when it converts or prints the result.
func checkResult(result types.Result) error {
	switch r := result.(type) {
	case *types100.Result:
		for i, ip := range r.IPs {
			if ip == nil || ip.Address.IP == nil {
				return fmt.Errorf("ips[%d] has no address", i)
			}
		}
		if i := slices.Index(r.Interfaces, nil); i >= 0 {
			return fmt.Errorf("interfaces[%d] is null", i)
		}
		return checkRoutes(r.Routes)
	case *types040.Result:
		for i, ip := range r.IPs {
			if ip == nil || ip.Address.IP == nil {
				return fmt.Errorf("ips[%d] has no address", i)
			}
		}
		if i := slices.Index(r.Interfaces, nil); i >= 0 {
			return fmt.Errorf("interfaces[%d] is null", i)
		}
		return checkRoutes(r.Routes)
	}
	return fmt.Errorf("version %s is not supported", result.Version())
}

func checkRoutes(routes []*types.Route) error {
	for i, r := range routes {
		if r == nil || r.Dst.IP == nil {
			return fmt.Errorf("routes[%d] has no destination", i)
		}
	}
	return nil
}
