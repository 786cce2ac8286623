// SPDX-License-Identifier: Apache-2.0

// Command gen writes the variants of pkg/bulk. It runs in the folder pkg/bench.
package main

import (
	"log"
	"os"
	"path/filepath"

	"github.com/xveth/xveth/pkg/bench/internal/variants"
)

func main() {
	for _, v := range variants.Names {
		files, err := variants.Files("..", v)
		if err != nil {
			log.Fatal(err)
		}
		for name, content := range files {
			path := filepath.Join("internal", name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				log.Fatal(err)
			}
			if err := os.WriteFile(path, content, 0o644); err != nil {
				log.Fatal(err)
			}
		}
	}
}
