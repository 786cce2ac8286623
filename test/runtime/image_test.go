// SPDX-License-Identifier: Apache-2.0

package runtime_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"runtime"
)

const (
	// imageName is that of the one image; no registry has the host's name.
	imageName = "xveth.test/guest:1"
	// servePort is where containers echo.
	servePort = 7000
	// serving is what the server prints when it can be reached.
	serving = "serving"
)

// serve is the command of a container that echoes. By itself the image only waits, which is
// all that a sandbox has to do.
var serve = []string{"/bin/guest", "serve", fmt.Sprint(servePort)}

// busybox is Debian's, linked statically.
const busybox = "/usr/bin/busybox"

// writeImage writes the image that all containers run as an archive in the format of
// "docker save", which every runtime can read: the guest program, and a shell.
func writeImage(to, guest string) error {
	layer, err := imageLayer(guest)
	if err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": runtime.GOOS,
		"config": map[string]any{"Cmd": []string{"/bin/guest", "pause"}, "Env": []string{"PATH=/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
	})
	if err != nil {
		return err
	}
	configName := fmt.Sprintf("%x.json", sha256.Sum256(config))
	const layerName = "layer.tar"
	manifest, err := json.Marshal([]any{map[string]any{
		"Config": configName, "RepoTags": []string{imageName}, "Layers": []string{layerName},
	}})
	if err != nil {
		return err
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range []struct {
		name string
		data []byte
	}{{configName, config}, {layerName, layer}, {"manifest.json", manifest}} {
		if err := addFile(w, f.name, 0o644, f.data); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(to, out.Bytes(), 0o644)
}

// imageLayer is the image's root file system.
func imageLayer(guest string) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, dir := range []string{"bin", "dev", "etc", "proc", "sys", "tmp"} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}); err != nil {
			return nil, err
		}
	}
	for name, from := range map[string]string{"guest": guest, "busybox": busybox} {
		data, err := os.ReadFile(from)
		if err != nil {
			return nil, err
		}
		if err := addFile(w, path.Join("bin", name), 0o755, data); err != nil {
			return nil, err
		}
	}
	for _, name := range []string{"sh", "ip", "cat"} {
		err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: path.Join("bin", name), Linkname: "busybox"})
		if err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

func addFile(w *tar.Writer, name string, mode int64, data []byte) error {
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(data))}); err != nil {
		return err
	}
	_, err := w.Write(data)
	return err
}
