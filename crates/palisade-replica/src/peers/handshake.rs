//! Two nodes meet: version, proof of the cluster's key, introductions (rule R14).
//!
//! ```text
//!   dialer                                             acceptor
//!   Hello { version, node, nonce, … } ─────────────►
//!                                     ◄───────────── Hello { version, node, nonce, … }
//!   Claim { proof, introduction }     ─────────────►   checks the proof, then judges
//!                                     ◄───────────── Claim { proof, introduction }
//!   checks the proof, then judges
//!   Accepted                          ─────────────►
//! ```
//!
//! In the place of each answer there may be `Refused`, with the reason. A proof is the HMAC-SHA-256, under the cluster's
//! key, of the side that makes it, both hellos and the introduction. Both nonces are in the hellos, so none is of use
//! again; the side is in it, so none can be sent back. The dialer proves first: a stranger that connects learns nothing
//! that a key could be guessed with.
//!
//! After the handshake, TLS alone protects the connection (`secure`). Without it, nobody else may be able to read or
//! write to the network: an attacker between two nodes could let them meet and then speak for either.

use std::io;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use tokio::io::{AsyncRead, AsyncWrite};

use super::frame;
use super::introduction::Introduction;
use super::refusal::{AdmissionRefusal, LostState};
use crate::codec::{Malformed, Put, Take};
use crate::entry::NodeId;

const MAGIC: &[u8] = b"palisade-peer";
const VERSION: u8 = 1;

/// The longest hello, and the longest claim, in bytes.
const LONGEST_HELLO: usize = 256;
pub(super) const LONGEST_CLAIM: usize = 32 << 10;
/// The longest reason, in bytes.
const LONGEST_REASON: usize = 1 << 10;
/// The longest refusal in bytes: a reason and a loss.
const LONGEST_REFUSAL: usize = LONGEST_REASON + 128;

/// The secret that the nodes of a cluster share. It is not printed.
#[derive(Clone, Default)]
pub struct Key(Vec<u8>);

impl Key {
    /// At least 16 bytes.
    ///
    /// # Errors
    /// An error message for a shorter one.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Key, &'static str> {
        let bytes = bytes.into();
        match bytes.len() {
            ..16 => Err("a cluster key has at least 16 bytes; `openssl rand -hex 32` makes one"),
            _ => Ok(Key(bytes)),
        }
    }

    /// A secret for one purpose, the same on every node: HMAC-SHA-256 of the purpose. It reveals neither the key nor the
    /// secret of another purpose.
    ///
    /// # Errors
    /// None is known: HMAC takes a key of any length.
    pub fn derive(&self, purpose: &str) -> io::Result<[u8; 32]> {
        let mut mac = self.mac()?;
        // No proof of a meeting begins like this.
        mac.update(b"palisade secret for ");
        mac.update(purpose.as_bytes());
        Ok(mac.finalize().into_bytes().into())
    }

    fn mac(&self) -> io::Result<Hmac<Sha256>> {
        Hmac::new_from_slice(&self.0).map_err(io::Error::other)
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Lane {
    /// Only to meet.
    Meeting,
    /// Short messages, which must not wait behind long ones.
    Short,
    /// Long messages.
    Long,
}

/// Why a meeting came to nothing.
#[derive(Debug)]
pub(super) enum Failed {
    /// One side refused, and both know why.
    Refused(String),
    /// This side refuses: the other one must not be let in.
    Refuses(AdmissionRefusal),
    /// The other side has proved that it knows the key, and says that this one lost something.
    Told(NodeId, AdmissionRefusal),
    Io(io::Error),
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Failed {
        Failed::Io(error)
    }
}

impl From<Malformed> for Failed {
    fn from(malformed: Malformed) -> Failed {
        Failed::Io(io::Error::new(io::ErrorKind::InvalidData, malformed))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    version: u8,
    keyed: bool,
    pub(super) node: NodeId,
    /// The purpose that the dialer wants; the acceptor repeats it.
    pub(super) lane: Lane,
    nonce: [u8; 32],
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Message {
    Hello(Hello),
    Claim {
        proof: [u8; 32],
        introduction: Vec<u8>,
    },
    Accepted,
    Refused(String),
    /// As `Refused`, and proved: the other node has to look into its own log.
    Lost {
        proof: [u8; 32],
        loss: Vec<u8>,
        why: String,
    },
}

impl Hello {
    fn new(node: NodeId, keyed: bool, lane: Lane) -> io::Result<Hello> {
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce).map_err(io::Error::other)?;
        Ok(Hello {
            version: VERSION,
            keyed,
            node,
            lane,
            nonce,
        })
    }

    /// Whether the two may go on; `self` is this node's.
    fn fits(&self, theirs: &Hello) -> Result<(), String> {
        if self.version != theirs.version {
            return Err(format!(
                "node {} speaks version {} between nodes and node {} version {}: run the same version on both, or one \
                 of two that follow each other",
                self.node, self.version, theirs.node, theirs.version
            ));
        }
        match (self.keyed, theirs.keyed) {
            (true, false) => Err(no_key(self.node, theirs.node)),
            (false, true) => Err(no_key(theirs.node, self.node)),
            _ => Ok(()),
        }
    }
}

fn no_key(with: NodeId, without: NodeId) -> String {
    format!(
        "node {with} has a cluster key and node {without} has none: give every node the same --cluster-key-file"
    )
}

impl Message {
    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Message::Hello(hello) => {
                out.u8(1);
                out.extend_from_slice(MAGIC);
                out.u8(hello.version);
                out.u8(hello.keyed.into());
                out.u64(hello.node.0);
                out.u8(match hello.lane {
                    Lane::Meeting => 0,
                    Lane::Short => 1,
                    Lane::Long => 2,
                });
                out.bytes(&hello.nonce);
            }
            Message::Claim {
                proof,
                introduction,
            } => {
                out.u8(2);
                out.bytes(proof);
                out.bytes(introduction);
            }
            Message::Accepted => out.u8(3),
            Message::Refused(why) => {
                out.u8(4);
                out.bytes(why.as_bytes());
            }
            Message::Lost { proof, loss, why } => {
                out.u8(5);
                out.bytes(proof);
                out.bytes(loss);
                out.bytes(why.as_bytes());
            }
        }
        out
    }

    fn decode(bytes: &[u8]) -> Result<Message, Malformed> {
        let mut from = Take(bytes);
        let message = match from.u8()? {
            1 => {
                let rest = from.0.strip_prefix(MAGIC);
                from = Take(rest.ok_or(Malformed("it is no node of Palisade"))?);
                Message::Hello(hello(&mut from)?)
            }
            2 => Message::Claim {
                proof: array(&mut from)?,
                introduction: from.bytes()?.to_vec(),
            },
            3 => Message::Accepted,
            4 => Message::Refused(reason(from.bytes()?)),
            5 => Message::Lost {
                proof: array(&mut from)?,
                loss: from.bytes()?.to_vec(),
                why: reason(from.bytes()?),
            },
            _ => return Err(Malformed("it is no node of Palisade")),
        };
        from.end()?;
        Ok(message)
    }
}

fn hello(from: &mut Take<'_>) -> Result<Hello, Malformed> {
    let (version, keyed) = (from.u8()?, from.flag()?);
    Ok(Hello {
        version,
        keyed,
        node: NodeId(from.u64()?),
        lane: match from.u8()? {
            0 => Lane::Meeting,
            1 => Lane::Short,
            2 => Lane::Long,
            _ => return Err(Malformed("a connection is for something unknown")),
        },
        nonce: array(from)?,
    })
}

fn array(from: &mut Take<'_>) -> Result<[u8; 32], Malformed> {
    let wrong = |_| Malformed("a nonce or a proof is of another length");
    from.bytes()?.try_into().map_err(wrong)
}

/// A refusal before anything else was said, as one frame.
pub(super) fn refusal(why: &str) -> Vec<u8> {
    let message = Message::Refused(reason(why.as_bytes())).encode();
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&length.to_le_bytes()[..], &message].concat()
}

/// Printable, and not longer than it has to be: it comes from a stranger, perhaps.
fn reason(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(LONGEST_REASON)]);
    let printable = |c: char| if c.is_control() { '?' } else { c };
    text.chars().map(printable).collect()
}

#[derive(Clone, Copy, Debug)]
enum Side {
    Dialer,
    Acceptor,
}

/// The input of every proof: both hellos and a key.
struct Exchange<'a> {
    key: &'a Key,
    dialer: Hello,
    acceptor: Hello,
}

impl Exchange<'_> {
    fn mac(&self, side: Side, introduction: &[u8]) -> io::Result<Hmac<Sha256>> {
        let label = match side {
            Side::Dialer => b"palisade peer dialer  ",
            Side::Acceptor => b"palisade peer acceptor",
        };
        self.mac_of(label, introduction)
    }

    fn mac_of_loss(&self, side: Side, loss: &[u8]) -> io::Result<Hmac<Sha256>> {
        let label = match side {
            Side::Dialer => b"palisade lost dialer  ",
            Side::Acceptor => b"palisade lost acceptor",
        };
        self.mac_of(label, loss)
    }

    fn mac_of(&self, label: &[u8; 22], introduction: &[u8]) -> io::Result<Hmac<Sha256>> {
        let mut mac = self.key.mac()?;
        mac.update(label);
        // Both are of one length.
        mac.update(&Message::Hello(self.dialer).encode());
        mac.update(&Message::Hello(self.acceptor).encode());
        mac.update(introduction);
        Ok(mac)
    }

    fn claim(&self, side: Side, introduction: Vec<u8>) -> io::Result<Message> {
        let proof = self.mac(side, &introduction)?.finalize().into_bytes();
        Ok(Message::Claim {
            proof: proof.into(),
            introduction,
        })
    }

    /// The answer of `side` to a node that it does not let in.
    fn refusal(
        &self,
        side: Side,
        AdmissionRefusal { why, loss }: &AdmissionRefusal,
    ) -> io::Result<Message> {
        let why = reason(why.as_bytes());
        let Some(loss) = loss else {
            return Ok(Message::Refused(why));
        };
        let loss = loss.encode();
        let proof = self.mac_of_loss(side, &loss)?.finalize().into_bytes();
        let proof = proof.into();
        Ok(Message::Lost { proof, loss, why })
    }

    /// The message of the other `side` that this one lost something; without a proof it is an ordinary refusal.
    fn told(&self, side: Side, proof: &[u8; 32], loss: &[u8], why: String) -> Failed {
        let proved = self.mac_of_loss(side, loss);
        let proved = proved.is_ok_and(|mac| mac.verify_slice(proof).is_ok());
        let by = match side {
            Side::Dialer => self.dialer.node,
            Side::Acceptor => self.acceptor.node,
        };
        match LostState::decode(loss) {
            Ok(loss) if proved => Failed::Told(
                by,
                AdmissionRefusal {
                    why,
                    loss: Some(loss),
                },
            ),
            _ => Failed::Refused(why),
        }
    }

    /// Compares in constant time.
    fn check(&self, side: Side, proof: &[u8; 32], introduction: &[u8]) -> Result<(), Failed> {
        let (node, other) = match side {
            Side::Dialer => (self.dialer.node, self.acceptor.node),
            Side::Acceptor => (self.acceptor.node, self.dialer.node),
        };
        let wrong = |_| {
            Failed::Refused(format!(
                "nodes {node} and {other} have different cluster keys: give every node the same --cluster-key-file"
            ))
        };
        self.mac(side, introduction)?
            .verify_slice(proof)
            .map_err(wrong)
    }
}

/// The introduction in a claim; it must be of the node that said hello.
fn introduced(bytes: &[u8], hello: &Hello) -> Result<Introduction, Failed> {
    let introduction = Introduction::decode(bytes)?;
    if introduction.node == hello.node {
        Ok(introduction)
    } else {
        Err(Malformed("a node has two ids").into())
    }
}

/// A stream to another node during the handshake.
pub(super) struct Meeting<'a, S: ?Sized> {
    pub(super) stream: &'a mut S,
    pub(super) key: Option<&'a Key>,
    pub(super) own: Introduction,
}

impl<S: AsyncRead + AsyncWrite + Unpin + ?Sized> Meeting<'_, S> {
    async fn say(&mut self, message: &Message) -> io::Result<()> {
        frame::write(self.stream, &[], &message.encode()).await
    }

    async fn hear(&mut self, most: usize) -> Result<Message, Failed> {
        let frame = frame::read(self.stream, most).await?;
        let gone = || io::Error::from(io::ErrorKind::UnexpectedEof);
        match Message::decode(&frame.ok_or_else(gone)?)? {
            Message::Refused(why) => Err(Failed::Refused(why)),
            message => Ok(message),
        }
    }

    /// Informs the other side, before this side gives up.
    async fn settle<T>(&mut self, result: Result<T, Failed>) -> Result<T, Failed> {
        if let Err(Failed::Refused(why)) = &result {
            let why = Message::Refused(reason(why.as_bytes()));
            // It may be gone by now.
            let _ = self.say(&why).await;
        }
        result
    }

    fn keyed(&self) -> bool {
        self.key.is_some()
    }

    /// As [`settle`](Meeting::settle), once both have said hello.
    async fn settle_in<T>(
        &mut self,
        exchange: &Exchange<'_>,
        side: Side,
        result: Result<T, Failed>,
    ) -> Result<T, Failed> {
        let Err(Failed::Refuses(refusal)) = result else {
            return self.settle(result).await;
        };
        let _ = self.say(&exchange.refusal(side, &refusal)?).await;
        Err(Failed::Refuses(refusal))
    }

    /// Dials. `judge` decides about the other side.
    pub(super) async fn dial(
        mut self,
        lane: Lane,
        judge: impl FnOnce(&Introduction) -> Result<(), AdmissionRefusal>,
    ) -> Result<Introduction, Failed> {
        let dialer = Hello::new(self.own.node, self.keyed(), lane)?;
        self.say(&Message::Hello(dialer)).await?;
        let Message::Hello(acceptor) = self.hear(LONGEST_HELLO.max(LONGEST_REASON + 8)).await?
        else {
            return Err(Malformed("an answer out of order").into());
        };
        let fits = dialer.fits(&acceptor).map_err(Failed::Refused);
        self.settle(fits).await?;
        let no_key = Key::default();
        let exchange = Exchange {
            key: self.key.unwrap_or(&no_key),
            dialer,
            acceptor,
        };
        let claim = exchange.claim(Side::Dialer, self.own.encode())?;
        self.say(&claim).await?;
        let claim = self.hear(LONGEST_CLAIM).await?;
        let theirs = exchange.accept(Side::Acceptor, claim, judge);
        let theirs = self.settle_in(&exchange, Side::Dialer, theirs).await?;
        self.say(&Message::Accepted).await?;
        Ok(theirs)
    }

    /// Accepts, and returns the purpose of the connection, too.
    pub(super) async fn accept(
        mut self,
        judge: impl FnOnce(&Introduction) -> Result<(), AdmissionRefusal>,
    ) -> Result<(Lane, Introduction), Failed> {
        let Message::Hello(dialer) = self.hear(LONGEST_HELLO).await? else {
            return Err(Malformed("it does not begin with a hello").into());
        };
        let acceptor = Hello::new(self.own.node, self.keyed(), dialer.lane)?;
        let fits = acceptor.fits(&dialer).map_err(Failed::Refused);
        self.settle(fits).await?;
        self.say(&Message::Hello(acceptor)).await?;
        let no_key = Key::default();
        let exchange = Exchange {
            key: self.key.unwrap_or(&no_key),
            dialer,
            acceptor,
        };
        let claim = self.hear(LONGEST_CLAIM).await?;
        let theirs = exchange.accept(Side::Dialer, claim, judge);
        let theirs = self.settle_in(&exchange, Side::Acceptor, theirs).await?;
        let claim = exchange.claim(Side::Acceptor, self.own.encode())?;
        self.say(&claim).await?;
        match self.hear(LONGEST_REFUSAL).await? {
            Message::Accepted => Ok((dialer.lane, theirs)),
            Message::Lost { proof, loss, why } => {
                Err(exchange.told(Side::Dialer, &proof, &loss, why))
            }
            _ => Err(Malformed("an answer out of order").into()),
        }
    }
}

impl Exchange<'_> {
    fn accept(
        &self,
        from: Side,
        claim: Message,
        judge: impl FnOnce(&Introduction) -> Result<(), AdmissionRefusal>,
    ) -> Result<Introduction, Failed> {
        let (proof, introduction) = match claim {
            Message::Claim {
                proof,
                introduction,
            } => (proof, introduction),
            Message::Lost { proof, loss, why } => return Err(self.told(from, &proof, &loss, why)),
            _ => return Err(Malformed("an answer out of order").into()),
        };
        self.check(from, &proof, &introduction)?;
        let hello = match from {
            Side::Dialer => &self.dialer,
            Side::Acceptor => &self.acceptor,
        };
        let theirs = introduced(&introduction, hello)?;
        judge(&theirs).map_err(Failed::Refuses)?;
        Ok(theirs)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests;
