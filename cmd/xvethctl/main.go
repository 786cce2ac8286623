// SPDX-License-Identifier: Apache-2.0

// Command xvethctl shows and manages the fast path of a node.
package main

import "fmt"

// version is set by the linker.
var version = "dev"

func main() { fmt.Println(version) }
