package fence

// MaxJump is the default bound on how far a token may be above the highest one: the most by which a restore raises the
// token counter until 2032.
const MaxJump = 1 << 46

// A Rule is one for the whole life of a resource. The zero Rule is the one to use, except that it believes any token:
// Claim is the zero Rule with the bound.
type Rule struct {
	// Strict admits one write for each grant, for records that are published once.
	Strict bool
	// MaxJump is how far one token is believed; 0 believes any.
	MaxJump uint64
}

// Claim is the rule of all fences that do not say otherwise.
var Claim = Rule{MaxJump: MaxJump}

// A Record is the record that a resource stores. The zero Record is a resource that never saw a token.
type Record struct {
	Authority, Lock string
	// Token is the highest one; 0 until the first.
	Token uint64
	// Written: something was written under that token. Numbered: one of these writes had a number.
	Written, Numbered bool
	// Sequence is the highest number of such a write, and Digest that of its content, if it had one.
	Sequence  uint64
	HasDigest bool
	Digest    uint64
	// Result is the result recorded with that write, or nil.
	Result []byte
}

// A Kind is the kind of an operation.
type Kind int

// Every operation raises the fence to the token that it presents.
const (
	KindClaim Kind = iota
	KindRead
	KindWrite
)

// String is claim, read or write.
func (k Kind) String() string {
	switch k {
	case KindClaim:
		return "claim"
	case KindRead:
		return "read"
	}
	return "write"
}

// An Operation is presented with a token.
type Operation struct {
	Kind Kind
	// Numbered: the write has a sequence number, and may have a digest of its content.
	Numbered  bool
	Sequence  uint64
	HasDigest bool
	Digest    uint64
}

// Decide is the decision of every fence, without I/O: the record to store, and whether a numbered write was carried out
// before; then nothing changes, and the answer is the record's result. After a rejection nothing may change.
//
// A nil holder is a write by code without a token. The repository's vectors/fence.json has the same decision as data. Carry
// an admitted operation out, and store the record, in one atomic, durable step, and only then answer.
func (r Rule) Decide(record Record, holder Holder, operation Operation) (next Record, repeat bool, rejected *Rejection) {
	if holder == nil {
		if record.Token != 0 {
			return record, false, &Rejection{Code: "tokenless", Highest: record.Token}
		}
		return record, false, nil
	}
	// A token of another authority or lock is no number to compare.
	if record.Authority != "" && holder.Authority() != record.Authority {
		return record, false, &Rejection{Code: "wrong_authority", Authority: record.Authority}
	}
	if record.Lock != "" && holder.Name() != record.Lock {
		return record, false, &Rejection{Code: "wrong_lock", Lock: record.Lock}
	}
	token := holder.Token()
	switch {
	case token < record.Token:
		return record, false, &Rejection{Code: "stale", Token: token, Highest: record.Token}
	case token == record.Token:
		if operation.Kind == KindWrite && record.Written {
			if repeat, rejected := r.again(record, operation); repeat || rejected != nil {
				return record, repeat, rejected
			}
		}
		return record.bound(holder).then(operation), false, nil
	case r.MaxJump != 0 && token-record.Token > r.MaxJump:
		return record, false, &Rejection{Code: "jump", Highest: record.Token, Bound: r.MaxJump}
	}
	raised := Record{Authority: record.Authority, Lock: record.Lock, Token: token}
	return raised.bound(holder).then(operation), false, nil
}

// again: the same holder writes once more. Only its own earlier writes count.
func (r Rule) again(record Record, operation Operation) (repeat bool, rejected *Rejection) {
	numbered := operation.Numbered && record.Numbered
	switch {
	case numbered && operation.Sequence == record.Sequence:
		if operation.HasDigest != record.HasDigest || operation.Digest != record.Digest {
			return false, &Rejection{Code: "sequence_reused", Last: record.Sequence}
		}
		return true, nil
	case r.Strict:
		return false, &Rejection{Code: "already_written"}
	case numbered && operation.Sequence < record.Sequence:
		return false, &Rejection{Code: "sequence_stale", Last: record.Sequence}
	}
	return false, nil
}

// bound keeps the names that were presented first.
func (record Record) bound(holder Holder) Record {
	if record.Authority == "" {
		record.Authority = holder.Authority()
	}
	if record.Lock == "" {
		record.Lock = holder.Name()
	}
	return record
}

func (record Record) then(operation Operation) Record {
	if operation.Kind != KindWrite {
		return record
	}
	record.Written = true
	if operation.Numbered {
		record.Numbered, record.Sequence = true, operation.Sequence
		record.HasDigest, record.Digest = operation.HasDigest, operation.Digest
		record.Result = nil
	}
	return record
}

// A Number makes a write safe to repeat: the fence recognises a write that it has seen under the same sequence number.
type Number struct {
	// Sequence is the number of this write among those of the grant, 0 – MaxToken; the highest counts.
	Sequence uint64
	// Digest is a checksum of the write's content: another write under the same number is refused.
	Digest uint64
}

// A Written is the answer to a write that was admitted.
type Written struct {
	// Repeat: this write was carried out before. Change nothing.
	Repeat bool
	// Result is the result recorded then, or nil.
	Result []byte
}

// WriteOperation is a write, with a number unless it is nil.
func WriteOperation(number *Number) Operation {
	if number == nil {
		return Operation{Kind: KindWrite}
	}
	return Operation{Kind: KindWrite, Numbered: true, Sequence: number.Sequence, HasDigest: true, Digest: number.Digest}
}
