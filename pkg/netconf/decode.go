// SPDX-License-Identifier: Apache-2.0

package netconf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/containernetworking/cni/pkg/types"
)

const (
	// maxText bounds the configuration; a real one has a few KiB.
	maxText = 1 << 20
	// maxDepth bounds the nesting of lists and objects.
	maxDepth = 64
	// maxQuote is how many bytes of a foreign string a message repeats.
	maxQuote = 64
	// maxCause is the same for the words of a library, which may repeat some.
	maxCause = 256
)

// node is one value of the configuration and the path that leads to it.
type node struct {
	path string
	raw  json.RawMessage
}

// field is a key that an object of the configuration may have.
type field[T any] struct {
	key string
	// null lets the key have no value, as runtimes write an empty slice.
	null bool
	read func(*T, node) error
}

// checkText answers for what encoding/json lets pass: size, encoding, depth
// and keys that occur twice, of which it would silently take the last.
func checkText(text []byte) error {
	if len(text) > maxText {
		return errf(types.ErrInvalidNetworkConfig,
			"read network configuration: %d bytes, want at most %d", len(text), maxText)
	}
	if !utf8.Valid(text) {
		return errf(types.ErrDecodingFailure, "read network configuration: text is not UTF-8")
	}
	var whole json.RawMessage
	if err := json.Unmarshal(text, &whole); err != nil {
		return errf(types.ErrDecodingFailure, "read network configuration: %w", err)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	return checkTree(dec, "", 0)
}

// checkTree consumes one value from dec.
func checkTree(dec *json.Decoder, path string, depth int) error {
	tok, err := dec.Token()
	if err != nil {
		return errf(types.ErrDecodingFailure, "read network configuration: %w", err)
	}
	open, ok := tok.(json.Delim)
	if !ok {
		return nil
	}
	if depth >= maxDepth {
		return errf(types.ErrInvalidNetworkConfig,
			"check %q: nested deeper than %d levels", path, maxDepth)
	}
	seen := map[string]bool{}
	for i := 0; dec.More(); i++ {
		child := path + "[" + strconv.Itoa(i) + "]"
		if open == '{' {
			tok, err := dec.Token()
			if err != nil {
				return errf(types.ErrDecodingFailure, "read network configuration: %w", err)
			}
			key, _ := tok.(string)
			child = join(path, key)
			if seen[key] {
				return errf(types.ErrInvalidNetworkConfig, "check %q: key is given twice", child)
			}
			seen[key] = true
		}
		if err := checkTree(dec, child, depth+1); err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil {
		return errf(types.ErrDecodingFailure, "read network configuration: %w", err)
	}
	return nil
}

// readTop returns the keys of the whole configuration.
func readTop(text []byte) (map[string]node, error) {
	top := node{raw: bytes.TrimSpace(text)}
	if top.raw[0] == '{' {
		return top.object()
	}
	var obj map[string]json.RawMessage
	if err := json.Unmarshal(text, &obj); err != nil {
		return nil, errf(types.ErrDecodingFailure, "read network configuration: %w", err)
	}
	return nil, errf(types.ErrDecodingFailure, "read network configuration: null is not an object")
}

// readObject fills dst from the keys of n and refuses keys that fields lacks.
func readObject[T any](dst *T, n node, fields []field[T]) error {
	obj, err := n.object()
	if err != nil {
		return err
	}
	return readKeys(dst, n.path, obj, fields)
}

func readKeys[T any](dst *T, path string, obj map[string]node, fields []field[T]) error {
	if err := checkKeys(path, obj, fieldKeys(fields)); err != nil {
		return err
	}
	for _, f := range fields {
		child, ok := obj[f.key]
		if !ok || f.null && child.isNull() {
			continue
		}
		if err := f.read(dst, child); err != nil {
			return err
		}
	}
	return nil
}

func fieldKeys[T any](fields []field[T]) []string {
	keys := make([]string, len(fields))
	for i, f := range fields {
		keys[i] = f.key
	}
	return keys
}

// checkKeys names the first key, in order of the alphabet, that is not known.
func checkKeys(path string, obj map[string]node, known []string) error {
	for _, key := range sortedKeys(obj) {
		if slices.Contains(known, key) {
			continue
		}
		near, alike := nearest(key, path, known)
		hint := fmt.Sprintf("the nearest known key is %q", near)
		if alike {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
		return types.NewError(types.ErrUnsupportedField,
			fmt.Sprintf("check %q: unknown key, %s", join(path, key), hint),
			"known keys here: "+strings.Join(known, ", "))
	}
	return nil
}

func sortedKeys(obj map[string]node) []string {
	keys := make([]string, 0, len(obj))
	for key := range obj {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

func (n node) isNull() bool { return string(n.raw) == "null" }

func (n node) object() (map[string]node, error) {
	var raws map[string]json.RawMessage
	if n.raw[0] != '{' {
		return nil, n.invalid("an object")
	}
	if err := json.Unmarshal(n.raw, &raws); err != nil {
		return nil, errf(types.ErrDecodingFailure, "read %q: %w", n.path, err)
	}
	obj := make(map[string]node, len(raws))
	for key, raw := range raws {
		obj[key] = node{path: join(n.path, key), raw: bytes.TrimSpace(raw)}
	}
	return obj, nil
}

func (n node) list(want string) ([]node, error) {
	var raws []json.RawMessage
	if n.raw[0] != '[' {
		return nil, n.invalid(want)
	}
	if err := json.Unmarshal(n.raw, &raws); err != nil {
		return nil, errf(types.ErrDecodingFailure, "read %q: %w", n.path, err)
	}
	list := make([]node, len(raws))
	for i, raw := range raws {
		list[i] = node{path: n.path + "[" + strconv.Itoa(i) + "]", raw: bytes.TrimSpace(raw)}
	}
	return list, nil
}

func (n node) isString() bool { return n.raw[0] == '"' }

// text returns the string that n holds, want says which strings are allowed.
func (n node) text(want string) (string, error) {
	var s string
	if !n.isString() {
		return "", n.invalid(want)
	}
	if err := json.Unmarshal(n.raw, &s); err != nil {
		return "", errf(types.ErrDecodingFailure, "read %q: %w", n.path, err)
	}
	return s, nil
}

// oneOf returns the string that n holds if it is one of those allowed.
func (n node) oneOf(allowed ...string) (string, error) {
	want := "one of " + strings.Join(allowed, ", ")
	s, err := n.text(want)
	if err == nil && !slices.Contains(allowed, s) {
		err = n.invalid(want)
	}
	return s, err
}

func (n node) boolean() (bool, error) {
	switch string(n.raw) {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, n.invalid("true or false")
}

// integer returns the number that n holds. Only plain digits count: a number
// with a fraction or an exponent is a mistake, even where its value is whole.
func (n node) integer(low, high uint64, want string) (uint64, error) {
	v, err := strconv.ParseUint(string(n.raw), 10, 64)
	if err != nil || v < low || v > high {
		return 0, n.invalid(want)
	}
	return v, nil
}

// invalid names the key, its value and what would be allowed.
func (n node) invalid(want string) error {
	return errf(types.ErrInvalidNetworkConfig, "check %q: %s is not allowed, want %s", n.path, n.show(), want)
}

// show renders the value so that no byte of it can disturb a log or terminal.
func (n node) show() string {
	var s string
	switch n.raw[0] {
	case '"':
		if json.Unmarshal(n.raw, &s) == nil {
			return quote(s)
		}
	case '{', '[':
		var b bytes.Buffer
		if json.Compact(&b, n.raw) == nil {
			return quote(b.String())
		}
	}
	return shorten(string(n.raw))
}

func missing(path, want string) error {
	return errf(types.ErrInvalidNetworkConfig, "check %q: missing, want %s", path, want)
}

func errf(code uint, format string, args ...any) error {
	return types.NewError(code, fmt.Errorf(format, args...).Error(), "")
}

func quote(s string) string { return fmt.Sprintf("%q", shorten(s)) }

func shorten(s string) string { return shortenTo(s, maxQuote) }

func shortenTo(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	cut := limit
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "..."
}

// join shortens the key, so that a path stays short whatever the text holds.
func join(path, key string) string {
	if path == "" {
		return shorten(key)
	}
	return path + "." + shorten(key)
}
