//! The machine of one handshake. See `docs/design/trust.md`.

use crate::key::{ClusterKeys, Credentials};
use std::sync::Arc;
use types::{ClusterId, ServerId};
use wire::PROTOCOL_VERSION;
use wire::handshake::{
    HandshakeAnswer, HandshakeMessage, HandshakeOpen, HandshakeRefusal, Nonce, Party, Proof,
    Purpose, Side,
};

/// Purposes of the connections that a server accepts.
pub const SERVED_BY_SERVERS: &[Purpose] = &[Purpose::Bus, Purpose::Priority];
/// Purposes of the connections that a coordinator accepts.
pub const SERVED_BY_COORDINATORS: &[Purpose] = &[Purpose::Control, Purpose::Operator];

/// The opening side's part of a handshake.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// Traffic that the connection is for.
    pub purpose: Purpose,
    /// Our cluster, if we know one.
    pub cluster: Option<ClusterId>,
    /// Our number, if we have one.
    pub server: Option<ServerId>,
    /// The server that must answer, if it has to be a certain one.
    pub expected: Option<ServerId>,
}

/// The accepting side's part of a handshake.
#[derive(Clone, Copy, Debug)]
pub struct Accepting {
    /// Purposes that are served here.
    pub purposes: &'static [Purpose],
    /// Our cluster, if we know one.
    pub cluster: Option<ClusterId>,
    /// Our number, if we have one.
    pub server: Option<ServerId>,
}

/// The other side of a connection after a handshake. Its key is proven; that it is the server it
/// says is its word, which everybody who holds the key can give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProvenPeer {
    /// Traffic that the connection is for.
    pub purpose: Purpose,
    /// Identity of the other side.
    pub party: Party,
}

/// Next step of a handshake's driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Send this; the handshake goes on.
    Reply(HandshakeMessage),
    /// Send `last`, if there is one; the handshake is over, and the connection may be used.
    Proven {
        /// The other side.
        peer: ProvenPeer,
        /// The last message of the handshake, if it is ours.
        last: Option<HandshakeMessage>,
    },
    /// Send `tell`, if there is one, and close the connection.
    Refused {
        /// For the operator.
        error: HandshakeError,
        /// For the other side's operator.
        tell: Option<HandshakeMessage>,
    },
}

/// Reasons why a handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The other side breaks a rule of ours.
    #[error("{}", ours(.0))]
    Ours(HandshakeRefusal),
    /// The other side says that we break one of its rules.
    #[error("{}", theirs(.0))]
    Theirs(HandshakeRefusal),
}

fn ours(refusal: &HandshakeRefusal) -> String {
    match refusal {
        HandshakeRefusal::Version { .. } => {
            format!(
                "the other side speaks another version of the protocol than {PROTOCOL_VERSION}; run \
                 the same version of ballast on both"
            )
        }
        HandshakeRefusal::KeyNeeded => {
            "the other side has no cluster key; give it --cluster-key-file with this cluster's key"
                .into()
        }
        HandshakeRefusal::NoKey => {
            "the other side has a cluster key and this one has none; give --cluster-key-file".into()
        }
        HandshakeRefusal::WrongKey => {
            "the other side's cluster key is another one; compare both key files".into()
        }
        HandshakeRefusal::WrongCluster => "the other side belongs to another cluster".into(),
        HandshakeRefusal::WrongServer => {
            "another server answers at the address of the one that is wanted".into()
        }
        HandshakeRefusal::WrongPurpose => {
            "the other side takes this port for another one; compare the addresses".into()
        }
        HandshakeRefusal::OutOfOrder => "the other side breaks the order of the handshake".into(),
    }
}

fn theirs(refusal: &HandshakeRefusal) -> String {
    match refusal {
        HandshakeRefusal::Version { speaks } => format!(
            "the other side speaks version {speaks} of the protocol, this one {PROTOCOL_VERSION}; run \
             the same version of ballast on both"
        ),
        HandshakeRefusal::KeyNeeded => {
            "the other side has a cluster key and this one has none; give --cluster-key-file".into()
        }
        HandshakeRefusal::NoKey => {
            "the other side has no cluster key; give it --cluster-key-file with this cluster's key"
                .into()
        }
        HandshakeRefusal::WrongKey => {
            "the other side does not accept this cluster key; compare both key files".into()
        }
        HandshakeRefusal::WrongCluster => "the other side belongs to another cluster".into(),
        HandshakeRefusal::WrongServer => "the other side takes this server for another one".into(),
        HandshakeRefusal::WrongPurpose => {
            "the other side does not serve such connections on this port; compare the addresses"
                .into()
        }
        HandshakeRefusal::OutOfOrder => {
            "the other side says that the handshake was out of order".into()
        }
    }
}

/// One side of one handshake.
#[derive(Debug)]
pub struct Handshake {
    /// Those of the moment at which it began.
    keys: Arc<Option<ClusterKeys>>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Accepted: the other side has to begin.
    Accepted { purposes: &'static [Purpose], answer: HandshakeAnswer },
    /// Opened: the other side has to answer.
    Opened { open: HandshakeOpen, expected: Option<ServerId> },
    /// Answered: the other side has to prove its key.
    Answered { open: HandshakeOpen, answer: HandshakeAnswer },
    /// Proven or refused: nothing is to come.
    Ended,
}

impl Handshake {
    /// Begins the handshake of a connection that we opened. Returns the first message as well.
    pub fn open(
        credentials: &Credentials,
        opening: Opening,
        nonce: Nonce,
    ) -> (Handshake, HandshakeMessage) {
        let keys = credentials.keys();
        let Opening { purpose, cluster, server, expected } = opening;
        let from = Party { cluster, server, generation: credentials.generation() };
        let is_keyed = keys.is_some();
        let open = HandshakeOpen { protocol: PROTOCOL_VERSION, is_keyed, purpose, from, nonce };
        let state = State::Opened { open, expected };
        (Handshake { keys, state }, HandshakeMessage::Open(open))
    }

    /// Begins the handshake of a connection that we accepted.
    pub fn accept(credentials: &Credentials, accepting: Accepting, nonce: Nonce) -> Handshake {
        let Accepting { purposes, cluster, server } = accepting;
        let from = Party { cluster, server, generation: credentials.generation() };
        let answer = HandshakeAnswer { protocol: PROTOCOL_VERSION, from, nonce };
        let state = State::Accepted { purposes, answer };
        Handshake { keys: credentials.keys(), state }
    }

    /// Takes the next message of the other side. The only way in which a handshake changes.
    pub fn handle(&mut self, message: HandshakeMessage) -> Step {
        let state = std::mem::replace(&mut self.state, State::Ended);
        let step = match (state, message) {
            (_, HandshakeMessage::Refuse(refusal)) => {
                let error = HandshakeError::Theirs(refusal);
                return Step::Refused { error, tell: None };
            }
            (State::Accepted { purposes, answer }, HandshakeMessage::Open(open)) => {
                self.answer(purposes, open, answer)
            }
            (State::Opened { open, expected }, HandshakeMessage::Answer { answer, proof }) => {
                self.prove(expected, &open, &answer, proof)
            }
            (State::Answered { open, answer }, HandshakeMessage::Prove { proof }) => {
                self.conclude(&open, &answer, proof)
            }
            (
                State::Accepted { .. }
                | State::Opened { .. }
                | State::Answered { .. }
                | State::Ended,
                HandshakeMessage::Open(_)
                | HandshakeMessage::Answer { .. }
                | HandshakeMessage::Prove { .. },
            ) => Err(HandshakeRefusal::OutOfOrder),
        };
        step.unwrap_or_else(|refusal| Step::Refused {
            error: HandshakeError::Ours(refusal),
            tell: Some(HandshakeMessage::Refuse(refusal)),
        })
    }

    /// Judges a first message, and proves our key.
    fn answer(
        &mut self,
        purposes: &[Purpose],
        open: HandshakeOpen,
        answer: HandshakeAnswer,
    ) -> Result<Step, HandshakeRefusal> {
        same_version(open.protocol)?;
        match (open.is_keyed, self.keys.is_some()) {
            (true, false) => return Err(HandshakeRefusal::NoKey),
            (false, true) => return Err(HandshakeRefusal::KeyNeeded),
            (true, true) | (false, false) => {}
        }
        if !purposes.contains(&open.purpose) {
            return Err(HandshakeRefusal::WrongPurpose);
        }
        fits(open.purpose, &open.from, &answer.from)?;
        let keys = (*self.keys).as_ref();
        let proof = keys.map(|keys| keys.prove(Side::Accepter, &open, &answer));
        self.state = State::Answered { open, answer };
        Ok(Step::Reply(HandshakeMessage::Answer { answer, proof }))
    }

    /// Judges an answer, and proves our key.
    fn prove(
        &mut self,
        expected: Option<ServerId>,
        open: &HandshakeOpen,
        answer: &HandshakeAnswer,
        proof: Option<Proof>,
    ) -> Result<Step, HandshakeRefusal> {
        same_version(answer.protocol)?;
        self.check(proof, Side::Accepter, open, answer)?;
        fits(open.purpose, &open.from, &answer.from)?;
        if expected.is_some() && answer.from.server != expected {
            return Err(HandshakeRefusal::WrongServer);
        }
        let keys = (*self.keys).as_ref();
        let proof = keys.map(|keys| keys.prove(Side::Opener, open, answer));
        let peer = ProvenPeer { purpose: open.purpose, party: answer.from };
        Ok(Step::Proven { peer, last: Some(HandshakeMessage::Prove { proof }) })
    }

    /// Judges the opening side's proof.
    fn conclude(
        &mut self,
        open: &HandshakeOpen,
        answer: &HandshakeAnswer,
        proof: Option<Proof>,
    ) -> Result<Step, HandshakeRefusal> {
        self.check(proof, Side::Opener, open, answer)?;
        let peer = ProvenPeer { purpose: open.purpose, party: open.from };
        Ok(Step::Proven { peer, last: None })
    }

    fn check(
        &self,
        proof: Option<Proof>,
        side: Side,
        open: &HandshakeOpen,
        answer: &HandshakeAnswer,
    ) -> Result<(), HandshakeRefusal> {
        match (&*self.keys, proof) {
            (None, None) => Ok(()),
            (None, Some(_)) => Err(HandshakeRefusal::NoKey),
            (Some(_), None) => Err(HandshakeRefusal::KeyNeeded),
            (Some(keys), Some(proof)) => match keys.check(&proof, side, open, answer) {
                true => Ok(()),
                false => Err(HandshakeRefusal::WrongKey),
            },
        }
    }
}

fn same_version(theirs: u16) -> Result<(), HandshakeRefusal> {
    match theirs == PROTOCOL_VERSION {
        true => Ok(()),
        false => Err(HandshakeRefusal::Version { speaks: PROTOCOL_VERSION }),
    }
}

/// Judges whether two parties may talk for this purpose. A coordinator admits servers by rules of
/// its own, which need more than this.
fn fits(purpose: Purpose, one: &Party, other: &Party) -> Result<(), HandshakeRefusal> {
    match purpose {
        Purpose::Bus | Purpose::Priority => {
            if one.cluster.is_none() || one.cluster != other.cluster {
                return Err(HandshakeRefusal::WrongCluster);
            }
            match one.server.is_some() && other.server.is_some() {
                true => Ok(()),
                false => Err(HandshakeRefusal::WrongServer),
            }
        }
        Purpose::Control | Purpose::Operator => Ok(()),
    }
}

#[cfg(test)]
mod tests;
