//go:build tools

// Package tools pins what this module builds; it is never compiled itself.
package tools

import (
	_ "go.etcd.io/etcd/etcdctl/v3"
	_ "go.etcd.io/etcd/server/v3"
)
