// SPDX-License-Identifier: Apache-2.0

// Package nftlink sends transactions to nftables over netlink: all of a batch is done or
// nothing, and an error names the step that the kernel refused. It is not a model of
// rules: what a message holds is the caller's, and google/nftables still reads rules and
// encodes expressions. That library can neither make a transaction conditional on the
// generation of the rules nor say which of its messages failed, and the acknowledgements
// to its longer batches overrun the socket.
//
// Everything happens in the network namespace of the thread that calls Open.
package nftlink

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

// ErrNotSupported says that the kernel lacks a part of nftables.
var ErrNotSupported = errors.New("not supported by the kernel")

// sendBuffer is what a netlink socket takes in one transaction without being told.
const sendBuffer = 128 << 10

// tableHandle is NFTA_TABLE_HANDLE, which x/sys does not have.
const tableHandle = 4

// Session is one netlink socket, used by the library and by us. One and not two, since
// closing a socket can wait for the kernel to free what any namespace's transactions
// deleted.
type Session struct {
	// Lib is the library on the same socket, for reading.
	Lib *nftables.Conn
	c   *netlink.Conn
}

// Open opens a session in the network namespace of the calling thread.
func Open() (*Session, error) {
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
	return &Session{lib, c}, nil
}

// Close ends the session.
func (s *Session) Close() { _ = s.Lib.CloseLasting() }

// Generation returns the number that each transaction of anybody's changes.
func (s *Session) Generation() (uint32, error) {
	var gen uint32
	err := s.Get(unix.NFT_MSG_GETGEN, unix.AF_UNSPEC, nil, func(ad *netlink.AttributeDecoder) {
		if ad.Type() == unix.NFTA_GEN_ID {
			gen = ad.Uint32()
		}
	})
	// EINVAL is nfnetlink's answer for a subsystem that it does not have; the
	// request has no argument that could be wrong.
	if Unsupported(err) || errors.Is(err, syscall.EINVAL) {
		return 0, fmt.Errorf("read nftables generation: nf_tables (CONFIG_NF_TABLES): %w: %w", ErrNotSupported, err)
	}
	if err != nil {
		return 0, fmt.Errorf("read nftables generation: %w", err)
	}
	return gen, nil
}

// Table is what the kernel says about a table.
type Table struct {
	Handle uint64
	Flags  uint32
	Use    uint32 // chains, sets and objects in it
}

// Dormant says whether the table's rules are without effect; that of no table is not.
func (t *Table) Dormant() bool { return t != nil && t.Flags&unix.NFT_TABLE_F_DORMANT != 0 }

// Table returns a table of family inet, or nil when there is none.
func (s *Session) Table(name string) (*Table, error) {
	t := &Table{}
	err := s.Get(unix.NFT_MSG_GETTABLE, unix.NFPROTO_INET,
		[]netlink.Attribute{Str(unix.NFTA_TABLE_NAME, name)},
		func(ad *netlink.AttributeDecoder) {
			switch ad.Type() {
			case tableHandle:
				t.Handle = ad.Uint64()
			case unix.NFTA_TABLE_FLAGS:
				t.Flags = ad.Uint32()
			case unix.NFTA_TABLE_USE:
				t.Use = ad.Uint32()
			}
		})
	if errors.Is(err, syscall.ENOENT) {
		return nil, nil
	}
	if Unsupported(err) {
		return nil, fmt.Errorf("read table inet %s: inet tables (CONFIG_NF_TABLES_INET): %w: %w", name, ErrNotSupported, err)
	}
	if err != nil {
		return nil, fmt.Errorf("read table inet %s: %w", name, err)
	}
	return t, nil
}

// Get asks for one object and hands its attributes to f.
func (s *Session) Get(kind uint16, family byte, attrs []netlink.Attribute, f func(*netlink.AttributeDecoder)) error {
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

// Batch is a transaction being made, of messages for tables of family inet.
type Batch struct {
	msgs  []netlink.Message
	steps []Step
	err   error
}

// Step says for an error what a message was for, and which part of the kernel is missing
// if it does not know the message.
type Step struct{ What, Needs string }

// Empty says whether there is nothing to do.
func (b *Batch) Empty() bool { return len(b.msgs) == 0 && b.err == nil }

// Steps are the steps of the messages, in order.
func (b *Batch) Steps() []Step { return b.steps }

// Fail makes the commit fail with an error, for what could not be encoded.
func (b *Batch) Fail(err error) { b.err = errors.Join(b.err, err) }

// Add appends a message. Flags are added to NLM_F_REQUEST.
func (b *Batch) Add(kind uint16, flags netlink.HeaderFlags, st Step, attrs ...netlink.Attribute) {
	m, err := message(kind, unix.NFPROTO_INET, netlink.Request|flags, attrs)
	b.Fail(err)
	b.msgs = append(b.msgs, m)
	b.steps = append(b.steps, st)
}

// AddTable adds a table unless it is there, and wakes a dormant one.
func (b *Batch) AddTable(table string) {
	b.Add(unix.NFT_MSG_NEWTABLE, netlink.Create,
		Step{"add table inet " + table, "inet tables in the kernel (CONFIG_NF_TABLES_INET)"},
		Str(unix.NFTA_TABLE_NAME, table), Num(unix.NFTA_TABLE_FLAGS, 0))
}

// DeleteTable deletes a table with all that is in it.
func (b *Batch) DeleteTable(table string) {
	b.Add(unix.NFT_MSG_DELTABLE, 0, Step{What: "delete table inet " + table}, Str(unix.NFTA_TABLE_NAME, table))
}

// AddBaseChain adds a chain of some type to a hook, with policy accept.
func (b *Batch) AddBaseChain(table, name string, kind nftables.ChainType, hook *nftables.ChainHook,
	priority nftables.ChainPriority, needs string,
) {
	b.Add(unix.NFT_MSG_NEWCHAIN, netlink.Create, Step{fmt.Sprintf("add chain %q", name), needs},
		Str(unix.NFTA_CHAIN_TABLE, table), Str(unix.NFTA_CHAIN_NAME, name),
		b.Nested(unix.NFTA_CHAIN_HOOK,
			Num(unix.NFTA_HOOK_HOOKNUM, uint32(*hook)), Num(unix.NFTA_HOOK_PRIORITY, uint32(priority))),
		Num(unix.NFTA_CHAIN_POLICY, uint32(nftables.ChainPolicyAccept)),
		Str(unix.NFTA_CHAIN_TYPE, string(kind)))
}

// DeleteChain deletes a chain and its rules.
func (b *Batch) DeleteChain(table, name string) {
	b.Add(unix.NFT_MSG_DELCHAIN, 0, Step{What: fmt.Sprintf("delete chain %q", name)},
		Str(unix.NFTA_CHAIN_TABLE, table), Str(unix.NFTA_CHAIN_NAME, name))
}

// FlushChain deletes the rules of a chain.
func (b *Batch) FlushChain(table, name string) {
	b.Add(unix.NFT_MSG_DELRULE, 0, Step{What: fmt.Sprintf("flush chain %q", name)},
		Str(unix.NFTA_RULE_TABLE, table), Str(unix.NFTA_RULE_CHAIN, name))
}

// AddRule appends a rule of encoded expressions to a chain. User data may be nil.
func (b *Batch) AddRule(table, chain string, st Step, exprs [][]byte, userData []byte) {
	var list []netlink.Attribute
	for _, data := range exprs {
		list = append(list, netlink.Attribute{Type: unix.NLA_F_NESTED | unix.NFTA_LIST_ELEM, Data: data})
	}
	attrs := []netlink.Attribute{
		Str(unix.NFTA_RULE_TABLE, table), Str(unix.NFTA_RULE_CHAIN, chain),
		b.Nested(unix.NFTA_RULE_EXPRESSIONS, list...),
	}
	if userData != nil {
		attrs = append(attrs, netlink.Attribute{Type: unix.NFTA_RULE_USERDATA, Data: userData})
	}
	b.Add(unix.NFT_MSG_NEWRULE, netlink.Create|netlink.Append, st, attrs...)
}

// Encode encodes an expression of the library's.
func (b *Batch) Encode(e expr.Any) []byte {
	data, err := expr.Marshal(unix.NFPROTO_INET, e)
	b.Fail(err)
	return data
}

// Nested is an attribute of attributes.
func (b *Batch) Nested(kind uint16, attrs ...netlink.Attribute) netlink.Attribute {
	data, err := netlink.MarshalAttributes(attrs)
	b.Fail(err)
	return netlink.Attribute{Type: unix.NLA_F_NESTED | kind, Data: data}
}

// Commit applies the whole batch, or nothing of it. With a generation that is not 0 it is
// refused (ERESTART) if anybody has changed anything since.
func (s *Session) Commit(gen uint32, b *Batch) error {
	if b.err != nil {
		return fmt.Errorf("encode transaction: %w", b.err)
	}
	if len(b.msgs) == 0 {
		return nil
	}
	begin, err := control(unix.NFNL_MSG_BATCH_BEGIN, Num(unix.NFNL_BATCH_GENID, gen))
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
	if err := s.makeRoom(msgs); err != nil {
		return err
	}
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
				return st.Explain(err)
			}
		}
	}
	return fmt.Errorf("commit nftables transaction: %w", err)
}

// makeRoom lets the socket take a transaction, which is one message to it.
func (s *Session) makeRoom(msgs []netlink.Message) error {
	const header = 20 // struct nlmsghdr and alignment
	size := 0
	for _, m := range msgs {
		size += header + len(m.Data)
	}
	if size <= sendBuffer {
		return nil
	}
	if err := s.c.SetWriteBuffer(2 * size); err != nil {
		return fmt.Errorf("make room for an nftables transaction of %d bytes: %w", size, err)
	}
	return nil
}

// Explain says why the kernel refused the step. A transaction adds the table and the
// chains that it names itself or knows them to be there, so ENOENT can only mean a part of
// the kernel that is not there.
func (st Step) Explain(err error) error {
	if st.Needs != "" && (Unsupported(err) || errors.Is(err, syscall.ENOENT)) {
		return fmt.Errorf("%s: needs %s: %w: %w", st.What, st.Needs, ErrNotSupported, err)
	}
	return fmt.Errorf("%s: %w", st.What, err)
}

// Unsupported tells whether the kernel does not know what we asked.
func Unsupported(err error) bool {
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

// Str is an attribute that holds a string.
func Str(kind uint16, s string) netlink.Attribute {
	return netlink.Attribute{Type: kind, Data: append([]byte(s), 0)}
}

// Num is an attribute that holds a number.
func Num(kind uint16, n uint32) netlink.Attribute {
	return netlink.Attribute{Type: kind, Data: binary.BigEndian.AppendUint32(nil, n)}
}
