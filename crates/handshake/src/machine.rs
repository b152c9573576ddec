//! The state machine of one handshake. See `docs/design/trust.md`.

use crate::key::{ClusterKeys, Credentials};
use std::sync::Arc;
use types::{ClusterId, ServerId};
use wire::PROTOCOL_VERSION;
use wire::handshake::{
    ConnectionPurpose, HandshakeAnswer, HandshakeMessage, HandshakeOpen, HandshakeRefusal, Nonce,
    Party, Proof, Side,
};

/// Purposes of the connections that a server accepts.
pub const SERVED_BY_SERVERS: &[ConnectionPurpose] =
    &[ConnectionPurpose::Bus, ConnectionPurpose::Priority];
/// Purposes of the connections that a coordinator accepts.
pub const SERVED_BY_COORDINATORS: &[ConnectionPurpose] =
    &[ConnectionPurpose::Control, ConnectionPurpose::Operator];

/// The opening side's part of a handshake.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// Traffic that the connection is for.
    pub purpose: ConnectionPurpose,
    /// Cluster of this process, if known.
    pub cluster: Option<ClusterId>,
    /// Server number of this process, if it has one.
    pub server: Option<ServerId>,
    /// The server that must answer; `None` accepts any.
    pub expected: Option<ServerId>,
}

/// The accepting side's part of a handshake.
#[derive(Clone, Copy, Debug)]
pub struct Accepting {
    /// Purposes that this process serves.
    pub purposes: &'static [ConnectionPurpose],
    /// Cluster of this process, if known.
    pub cluster: Option<ClusterId>,
    /// Server number of this process, if it has one.
    pub server: Option<ServerId>,
}

/// The authenticated peer of a completed handshake. Possession of the key is proven; the server
/// number is only claimed, and any holder of the key can claim it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProvenPeer {
    /// Traffic that the connection is for.
    pub purpose: ConnectionPurpose,
    /// Identity of the other side.
    pub party: Party,
}

/// The next step for a handshake's driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandshakeStep {
    /// Send this message; the handshake continues.
    Reply(HandshakeMessage),
    /// Send `last`, if present. The handshake is complete, and the connection may be used.
    Proven {
        /// The peer.
        peer: ProvenPeer,
        /// The last message of the handshake, if this side sends it.
        last: Option<HandshakeMessage>,
    },
    /// Send `refusal`, if present, and close the connection.
    Refused {
        /// Error for this side's operator.
        error: HandshakeError,
        /// Refusal for the other side's operator.
        refusal: Option<HandshakeMessage>,
    },
}

/// The reason why a handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The other side violated a rule of this side.
    #[error("{}", ours(.0))]
    Ours(HandshakeRefusal),
    /// The other side reported that this side violated a rule.
    #[error("{}", theirs(.0))]
    Theirs(HandshakeRefusal),
}

fn ours(refusal: &HandshakeRefusal) -> String {
    match refusal {
        HandshakeRefusal::Version { .. } => {
            format!(
                "the peer speaks another version of the protocol than {PROTOCOL_VERSION}; run the \
                 same version of ballast on both"
            )
        }
        HandshakeRefusal::KeyNeeded => {
            "the peer has no cluster key; start it with --cluster-key-file and this cluster's key"
                .into()
        }
        HandshakeRefusal::NoKey => {
            "the peer has a cluster key, but this side has none; give --cluster-key-file".into()
        }
        HandshakeRefusal::WrongKey => {
            "the peer's cluster key is another one; compare both key files".into()
        }
        HandshakeRefusal::WrongCluster => "the peer belongs to another cluster".into(),
        HandshakeRefusal::WrongServer => {
            "another server than the expected one answers at this address".into()
        }
        HandshakeRefusal::WrongPurpose => {
            "the peer expects other connections on this port; compare the addresses".into()
        }
        HandshakeRefusal::OutOfOrder => "the peer violates the order of the handshake".into(),
    }
}

fn theirs(refusal: &HandshakeRefusal) -> String {
    match refusal {
        HandshakeRefusal::Version { speaks } => format!(
            "the peer speaks version {speaks} of the protocol, this side {PROTOCOL_VERSION}; run \
             the same version of ballast on both"
        ),
        HandshakeRefusal::KeyNeeded => {
            "the peer has a cluster key, but this side has none; give --cluster-key-file".into()
        }
        HandshakeRefusal::NoKey => {
            "the peer has no cluster key; start it with --cluster-key-file and this cluster's key"
                .into()
        }
        HandshakeRefusal::WrongKey => {
            "the peer does not accept this cluster key; compare both key files".into()
        }
        HandshakeRefusal::WrongCluster => "the peer belongs to another cluster".into(),
        HandshakeRefusal::WrongServer => "the peer expects another server at this address".into(),
        HandshakeRefusal::WrongPurpose => {
            "the peer does not serve such connections on this port; compare the addresses".into()
        }
        HandshakeRefusal::OutOfOrder => {
            "the peer reports that the handshake was out of order".into()
        }
    }
}

/// One side of one handshake.
pub struct Handshake {
    /// The keys at the beginning of the handshake. A change of keys does not affect it.
    keys: Arc<Option<ClusterKeys>>,
    state: HandshakeState,
}

enum HandshakeState {
    /// Accepted: the other side must send the first message.
    Accepted { purposes: &'static [ConnectionPurpose], answer: HandshakeAnswer },
    /// Opened: the other side must answer.
    Opened { open: HandshakeOpen, expected: Option<ServerId> },
    /// Answered: the other side must prove its key.
    Answered { open: HandshakeOpen, answer: HandshakeAnswer },
    /// Proven or refused: no further message is valid.
    Ended,
}

impl Handshake {
    /// Begins the handshake of a connection that this side opened. Also returns the first message.
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
        let state = HandshakeState::Opened { open, expected };
        (Handshake { keys, state }, HandshakeMessage::Open(open))
    }

    /// Begins the handshake of a connection that this side accepted.
    pub fn accept(credentials: &Credentials, accepting: Accepting, nonce: Nonce) -> Handshake {
        let Accepting { purposes, cluster, server } = accepting;
        let from = Party { cluster, server, generation: credentials.generation() };
        let answer = HandshakeAnswer { protocol: PROTOCOL_VERSION, from, nonce };
        let state = HandshakeState::Accepted { purposes, answer };
        Handshake { keys: credentials.keys(), state }
    }

    /// Processes the next message of the other side; the only way to advance a handshake.
    pub fn handle(&mut self, message: HandshakeMessage) -> HandshakeStep {
        let state = std::mem::replace(&mut self.state, HandshakeState::Ended);
        let step = match (state, message) {
            (_, HandshakeMessage::Refuse(refusal)) => {
                let error = HandshakeError::Theirs(refusal);
                Ok(HandshakeStep::Refused { error, refusal: None })
            }
            (HandshakeState::Accepted { purposes, answer }, HandshakeMessage::Open(open)) => {
                self.answer(purposes, open, answer)
            }
            (
                HandshakeState::Opened { open, expected },
                HandshakeMessage::Answer { answer, proof },
            ) => self.prove(expected, &open, &answer, proof),
            (HandshakeState::Answered { open, answer }, HandshakeMessage::Prove { proof }) => {
                self.conclude(&open, &answer, proof)
            }
            (
                HandshakeState::Accepted { .. }
                | HandshakeState::Opened { .. }
                | HandshakeState::Answered { .. }
                | HandshakeState::Ended,
                HandshakeMessage::Open(_)
                | HandshakeMessage::Answer { .. }
                | HandshakeMessage::Prove { .. },
            ) => Err(HandshakeRefusal::OutOfOrder),
        };
        let step = step.unwrap_or_else(|refusal| HandshakeStep::Refused {
            error: HandshakeError::Ours(refusal),
            refusal: Some(HandshakeMessage::Refuse(refusal)),
        });
        self.check_step(&step);
        step
    }

    /// Asserts that a handshake has ended exactly if its last step ends it.
    fn check_step(&self, step: &HandshakeStep) {
        let has_ended = matches!(self.state, HandshakeState::Ended);
        let continues = matches!(step, HandshakeStep::Reply(_));
        assert_ne!(has_ended, continues, "the state of a handshake contradicts its last step");
    }

    /// Checks the first message, and proves this side's key.
    fn answer(
        &mut self,
        purposes: &[ConnectionPurpose],
        open: HandshakeOpen,
        answer: HandshakeAnswer,
    ) -> Result<HandshakeStep, HandshakeRefusal> {
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
        self.state = HandshakeState::Answered { open, answer };
        Ok(HandshakeStep::Reply(HandshakeMessage::Answer { answer, proof }))
    }

    /// Checks an answer, and proves this side's key.
    fn prove(
        &mut self,
        expected: Option<ServerId>,
        open: &HandshakeOpen,
        answer: &HandshakeAnswer,
        proof: Option<Proof>,
    ) -> Result<HandshakeStep, HandshakeRefusal> {
        same_version(answer.protocol)?;
        self.check(proof, Side::Accepter, open, answer)?;
        fits(open.purpose, &open.from, &answer.from)?;
        if expected.is_some() && answer.from.server != expected {
            return Err(HandshakeRefusal::WrongServer);
        }
        let keys = (*self.keys).as_ref();
        let proof = keys.map(|keys| keys.prove(Side::Opener, open, answer));
        let peer = ProvenPeer { purpose: open.purpose, party: answer.from };
        Ok(HandshakeStep::Proven { peer, last: Some(HandshakeMessage::Prove { proof }) })
    }

    /// Checks the opening side's proof.
    fn conclude(
        &mut self,
        open: &HandshakeOpen,
        answer: &HandshakeAnswer,
        proof: Option<Proof>,
    ) -> Result<HandshakeStep, HandshakeRefusal> {
        self.check(proof, Side::Opener, open, answer)?;
        let peer = ProvenPeer { purpose: open.purpose, party: open.from };
        Ok(HandshakeStep::Proven { peer, last: None })
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

/// Checks that two parties may communicate for this purpose. A coordinator admits servers by its
/// own rules, which need more information.
fn fits(purpose: ConnectionPurpose, one: &Party, other: &Party) -> Result<(), HandshakeRefusal> {
    match purpose {
        ConnectionPurpose::Bus | ConnectionPurpose::Priority => {
            if one.cluster.is_none() || one.cluster != other.cluster {
                return Err(HandshakeRefusal::WrongCluster);
            }
            match one.server.is_some() && other.server.is_some() {
                true => Ok(()),
                false => Err(HandshakeRefusal::WrongServer),
            }
        }
        ConnectionPurpose::Control | ConnectionPurpose::Operator => Ok(()),
    }
}

#[cfg(test)]
mod tests;
