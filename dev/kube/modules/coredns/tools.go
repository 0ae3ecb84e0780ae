//go:build tools

// Package tools pins what this module builds; it is never compiled itself.
package tools

import _ "github.com/coredns/coredns"
