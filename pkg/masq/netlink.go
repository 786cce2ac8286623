// SPDX-License-Identifier: Apache-2.0

package masq

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// google/nftables cannot make a transaction conditional on the generation of
// the rules, and without that two processes that each add a subnet lose one of
// them. So the messages that write are built here; rules are still read and
// expressions still encoded by the library.

// session is one netlink socket in the namespace of the calling thread, used
// by the library and by us. One and not two, since closing a socket can wait
// for the kernel to free what any namespace's transactions deleted.
type session struct {
	lib *nftables.Conn
	c   *netlink.Conn
}

func open() (*session, error) {
	var c *netlink.Conn
	lib, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(conn *netlink.Conn) error {
		c = conn
		return nil
	}))
	if errors.Is(err, syscall.EPROTONOSUPPORT) {
		return nil, fmt.Errorf("open nftables socket: nfnetlink (CONFIG_NETFILTER_NETLINK): %w: %w", ErrNotSupported, err)
	}
	if err != nil {
		return nil, fmt.Errorf("open nftables socket: %w", err)
	}
	return &session{lib, c}, nil
}

func (s *session) close() { _ = s.lib.CloseLasting() }

// table is what we need to know of our table.
type table struct {
	flags uint32
	use   uint32 // chains, sets and objects in it
}

func (t *table) dormant() bool { return t != nil && t.flags&unix.NFT_TABLE_F_DORMANT != 0 }

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

// generation returns the number that each transaction of anybody's changes.
func (s *session) generation() (uint32, error) {
	var gen uint32
	err := s.get(unix.NFT_MSG_GETGEN, unix.AF_UNSPEC, nil, func(ad *netlink.AttributeDecoder) {
		if ad.Type() == unix.NFTA_GEN_ID {
			gen = ad.Uint32()
		}
	})
	// EINVAL is nfnetlink's answer for a subsystem that it does not have; the
	// request has no argument that could be wrong.
	if unsupported(err) || errors.Is(err, syscall.EINVAL) {
		return 0, fmt.Errorf("read nftables generation: nf_tables (CONFIG_NF_TABLES): %w: %w", ErrNotSupported, err)
	}
	if err != nil {
		return 0, fmt.Errorf("read nftables generation: %w", err)
	}
	return gen, nil
}

// table returns nil when there is none.
func (s *session) table() (*table, error) {
	t := &table{}
	err := s.get(unix.NFT_MSG_GETTABLE, unix.NFPROTO_INET,
		[]netlink.Attribute{str(unix.NFTA_TABLE_NAME, tableName)},
		func(ad *netlink.AttributeDecoder) {
			switch ad.Type() {
			case unix.NFTA_TABLE_FLAGS:
				t.flags = ad.Uint32()
			case unix.NFTA_TABLE_USE:
				t.use = ad.Uint32()
			}
		})
	if errors.Is(err, syscall.ENOENT) {
		return nil, nil
	}
	if unsupported(err) {
		return nil, fmt.Errorf("read table inet %s: inet tables (CONFIG_NF_TABLES_INET): %w: %w", tableName, ErrNotSupported, err)
	}
	if err != nil {
		return nil, fmt.Errorf("read table inet %s: %w", tableName, err)
	}
	return t, nil
}

// chain returns nil when there is none.
func (s *session) chain(name string) (*chain, error) {
	c := &chain{}
	err := s.get(unix.NFT_MSG_GETCHAIN, unix.NFPROTO_INET,
		[]netlink.Attribute{str(unix.NFTA_CHAIN_TABLE, tableName), str(unix.NFTA_CHAIN_NAME, name)},
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

// get asks for one object and hands its attributes to f.
func (s *session) get(kind uint16, family byte, attrs []netlink.Attribute, f func(*netlink.AttributeDecoder)) error {
	m, err := message(kind, family, netlink.Request, attrs)
	if err != nil {
		return err
	}
	answers, err := s.c.Execute(m)
	if err != nil {
		return err
	}
	const header = 4 // struct nfgenmsg
	if len(answers) != 1 || len(answers[0].Data) < header {
		return fmt.Errorf("kernel gave %d answers", len(answers))
	}
	ad, err := netlink.NewAttributeDecoder(answers[0].Data[header:])
	if err != nil {
		return err
	}
	ad.ByteOrder = binary.BigEndian
	for ad.Next() {
		f(ad)
	}
	return ad.Err()
}

// batch is a transaction being made.
type batch struct {
	msgs  []netlink.Message
	steps []step
	err   error
}

// step says for an error what a message was for, and which part of the kernel
// is missing if it does not know the message.
type step struct{ what, needs string }

func (b *batch) empty() bool { return len(b.msgs) == 0 }

func (b *batch) add(kind uint16, flags netlink.HeaderFlags, st step, attrs ...netlink.Attribute) {
	m, err := message(kind, unix.NFPROTO_INET, netlink.Request|flags, attrs)
	b.err = errors.Join(b.err, err)
	b.msgs = append(b.msgs, m)
	b.steps = append(b.steps, st)
}

func (b *batch) addTable() {
	b.add(unix.NFT_MSG_NEWTABLE, netlink.Create,
		step{"add table inet " + tableName, "inet tables in the kernel (CONFIG_NF_TABLES_INET)"},
		str(unix.NFTA_TABLE_NAME, tableName), num(unix.NFTA_TABLE_FLAGS, 0))
}

func (b *batch) deleteTable() {
	b.add(unix.NFT_MSG_DELTABLE, 0, step{what: "delete table inet " + tableName}, str(unix.NFTA_TABLE_NAME, tableName))
}

func (b *batch) addChain(name string) {
	hook, err := netlink.MarshalAttributes([]netlink.Attribute{
		num(unix.NFTA_HOOK_HOOKNUM, uint32(*nftables.ChainHookPostrouting)),
		num(unix.NFTA_HOOK_PRIORITY, uint32(*nftables.ChainPriorityNATSource)),
	})
	b.err = errors.Join(b.err, err)
	b.add(unix.NFT_MSG_NEWCHAIN, netlink.Create,
		step{fmt.Sprintf("add chain %q", name), "nf_tables nat in the kernel (CONFIG_NFT_NAT, module nft_chain_nat)"},
		str(unix.NFTA_CHAIN_TABLE, tableName), str(unix.NFTA_CHAIN_NAME, name),
		netlink.Attribute{Type: unix.NLA_F_NESTED | unix.NFTA_CHAIN_HOOK, Data: hook},
		num(unix.NFTA_CHAIN_POLICY, uint32(nftables.ChainPolicyAccept)),
		str(unix.NFTA_CHAIN_TYPE, string(nftables.ChainTypeNAT)))
}

func (b *batch) deleteChain(name string) {
	b.add(unix.NFT_MSG_DELCHAIN, 0, step{what: fmt.Sprintf("delete chain %q", name)},
		str(unix.NFTA_CHAIN_TABLE, tableName), str(unix.NFTA_CHAIN_NAME, name))
}

func (b *batch) flushChain(name string) {
	b.add(unix.NFT_MSG_DELRULE, 0, step{what: fmt.Sprintf("flush chain %q", name)},
		str(unix.NFTA_RULE_TABLE, tableName), str(unix.NFTA_RULE_CHAIN, name))
}

func (b *batch) addRule(name string, r rule, userData []byte) error {
	var list []netlink.Attribute
	for _, e := range r.exprs() {
		data, err := expr.Marshal(unix.NFPROTO_INET, e)
		if err != nil {
			return fmt.Errorf("encode rule %q: %w", r, err)
		}
		list = append(list, netlink.Attribute{Type: unix.NLA_F_NESTED | unix.NFTA_LIST_ELEM, Data: data})
	}
	exprs, err := netlink.MarshalAttributes(list)
	if err != nil {
		return fmt.Errorf("encode rule %q: %w", r, err)
	}
	needs := "nf_tables expressions in the kernel (CONFIG_NF_TABLES)"
	if r.masquerade {
		needs = "nf_tables masquerade in the kernel (CONFIG_NFT_MASQ, module nft_masq)"
	}
	b.add(unix.NFT_MSG_NEWRULE, netlink.Create|netlink.Append, step{fmt.Sprintf("add rule %q", r), needs},
		str(unix.NFTA_RULE_TABLE, tableName), str(unix.NFTA_RULE_CHAIN, name),
		netlink.Attribute{Type: unix.NLA_F_NESTED | unix.NFTA_RULE_EXPRESSIONS, Data: exprs},
		netlink.Attribute{Type: unix.NFTA_RULE_USERDATA, Data: userData})
	return nil
}

// commit applies the whole batch, or nothing of it if anybody has changed
// anything since generation gen (ERESTART).
func (s *session) commit(gen uint32, b *batch) error {
	if b.err != nil {
		return fmt.Errorf("encode transaction: %w", b.err)
	}
	begin, err := control(unix.NFNL_MSG_BATCH_BEGIN, num(unix.NFNL_BATCH_GENID, gen))
	if err != nil {
		return fmt.Errorf("encode transaction: %w", err)
	}
	end, err := control(unix.NFNL_MSG_BATCH_END)
	if err != nil {
		return fmt.Errorf("encode transaction: %w", err)
	}
	// The kernel answers a message that it refuses in any case, and in order.
	// Asking for one acknowledgement, of the last, keeps the answers to a long
	// batch from overrunning the socket.
	b.msgs[len(b.msgs)-1].Header.Flags |= netlink.Acknowledge
	msgs := append(append([]netlink.Message{begin}, b.msgs...), end)
	sent, err := s.c.SendMessages(msgs)
	if err != nil {
		return fmt.Errorf("send nftables transaction: %w", err)
	}
	_, err = s.c.Receive()
	if err == nil {
		return nil
	}
	var op *netlink.OpError
	if errors.As(err, &op) {
		for i, st := range b.steps {
			if sent[i+1].Header.Sequence == op.Sequence {
				return st.explain(err)
			}
		}
	}
	return fmt.Errorf("commit nftables transaction: %w", err)
}

// explain says why the kernel refused the step. The transaction adds the
// table and the chain itself and nobody has changed anything since we looked,
// so ENOENT can only mean a part of the kernel that is not there.
func (st step) explain(err error) error {
	if st.needs != "" && (unsupported(err) || errors.Is(err, syscall.ENOENT)) {
		return fmt.Errorf("%s: needs %s: %w: %w", st.what, st.needs, ErrNotSupported, err)
	}
	return fmt.Errorf("%s: %w", st.what, err)
}

// unsupported tells whether the kernel does not know what we asked.
func unsupported(err error) bool {
	return errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.EAFNOSUPPORT) ||
		errors.Is(err, syscall.EPROTONOSUPPORT)
}

func message(kind uint16, family byte, flags netlink.HeaderFlags, attrs []netlink.Attribute) (netlink.Message, error) {
	data, err := netlink.MarshalAttributes(attrs)
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: flags},
		Data:   append([]byte{family, unix.NFNETLINK_V0, 0, 0}, data...),
	}, err
}

func control(kind uint16, attrs ...netlink.Attribute) (netlink.Message, error) {
	data, err := netlink.MarshalAttributes(attrs)
	return netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(kind), Flags: netlink.Request},
		Data:   append([]byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES}, data...),
	}, err
}

func str(kind uint16, s string) netlink.Attribute {
	return netlink.Attribute{Type: kind, Data: append([]byte(s), 0)}
}

func num(kind uint16, n uint32) netlink.Attribute {
	return netlink.Attribute{Type: kind, Data: binary.BigEndian.AppendUint32(nil, n)}
}
