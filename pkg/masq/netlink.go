// SPDX-License-Identifier: Apache-2.0

package masq

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/xveth/xveth/pkg/internal/nftlink"
)

// session reads our table. Writes are conditional on the generation that was read:
// without that two processes that each add a subnet lose one of them.
type session struct{ *nftlink.Session }

func open() (*session, error) {
	s, err := nftlink.Open()
	if err != nil {
		return nil, err
	}
	return &session{s}, nil
}

// chain is what we need to know of a chain.
type chain struct {
	kind           string
	hook, priority uint32
	policy         uint32
	base           bool
}

// ok tells whether the chain is there and does source NAT.
func (c *chain) ok() bool {
	return c != nil && c.base && c.kind == "nat" && c.hook == uint32(*nftables.ChainHookPostrouting) &&
		c.priority == uint32(*nftables.ChainPriorityNATSource) && c.policy == uint32(nftables.ChainPolicyAccept)
}

// table returns nil when there is none.
func (s *session) table() (*nftlink.Table, error) { return s.Table(tableName) }

// chain returns nil when there is none.
func (s *session) chain(name string) (*chain, error) {
	c := &chain{}
	err := s.Get(unix.NFT_MSG_GETCHAIN, unix.NFPROTO_INET,
		[]netlink.Attribute{nftlink.Str(unix.NFTA_CHAIN_TABLE, tableName), nftlink.Str(unix.NFTA_CHAIN_NAME, name)},
		func(ad *netlink.AttributeDecoder) {
			switch ad.Type() {
			case unix.NFTA_CHAIN_TYPE:
				c.kind = ad.String()
			case unix.NFTA_CHAIN_POLICY:
				c.policy = ad.Uint32()
			case unix.NFTA_CHAIN_HOOK:
				c.base = true
				ad.Nested(func(h *netlink.AttributeDecoder) error {
					for h.Next() {
						switch h.Type() {
						case unix.NFTA_HOOK_HOOKNUM:
							c.hook = h.Uint32()
						case unix.NFTA_HOOK_PRIORITY:
							c.priority = h.Uint32()
						}
					}
					return nil
				})
			}
		})
	if errors.Is(err, syscall.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read chain %q: %w", name, err)
	}
	return c, nil
}

// batch is a transaction on our table.
type batch struct{ nftlink.Batch }

func (b *batch) addTable()               { b.AddTable(tableName) }
func (b *batch) deleteTable()            { b.DeleteTable(tableName) }
func (b *batch) deleteChain(name string) { b.DeleteChain(tableName, name) }
func (b *batch) flushChain(name string)  { b.FlushChain(tableName, name) }

func (b *batch) addChain(name string) {
	b.AddBaseChain(tableName, name, nftables.ChainTypeNAT, nftables.ChainHookPostrouting,
		*nftables.ChainPriorityNATSource, "nf_tables nat in the kernel (CONFIG_NFT_NAT, module nft_chain_nat)")
}

func (b *batch) addRule(name string, r rule, userData []byte) {
	var list [][]byte
	for _, e := range r.exprs() {
		list = append(list, b.Encode(e))
	}
	needs := "nf_tables expressions in the kernel (CONFIG_NF_TABLES)"
	if r.masquerade {
		needs = "nf_tables masquerade in the kernel (CONFIG_NFT_MASQ, module nft_masq)"
	}
	b.AddRule(tableName, name, nftlink.Step{What: fmt.Sprintf("add rule %q", r), Needs: needs}, list, userData)
}
