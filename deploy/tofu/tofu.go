//go:build tools

// Package tofu names the program that build makes, for `go mod tidy`.
package tofu

import _ "github.com/opentofu/opentofu/cmd/tofu"
