//! A server's side of the conversation with its coordinator: the join, and the answers that must
//! not wait for a reactor.
//!
//! The first message on each connection is a join. The coordinator answers with a welcome, which
//! gives a new process its number. It may ask for the clock before, make the server wait, or ask
//! for the map and the holdings if it has lost its file. After the welcome, pings and clock
//! questions are answered at once, and all other messages are passed on.
//!
//! The machine outlives its connections: it keeps the number, and the highest mark that was
//! received, for the next join (`docs/design/identity.md`). The driver moves messages, and connects
//! again when a connection has ended.
//!
//! Invariants:
//! - Nothing but the join, answers to questions and descriptions is sent before the welcome.
//! - The number of a process never changes.

use crate::ReactorLiveness;
use std::collections::VecDeque;
use types::{ClusterId, Instant, ServerId, UnixMillis};
use wire::control::{
    ClockQuestion, ClockReading, ClusterMap, Description, FromCoordinator, HistoryMark, Holdings,
    Join, JoinReply, LivenessRequest, LivenessUpdate, ToCoordinator,
};

/// An input of [`ClusterMembership`].
#[derive(Debug)]
pub enum MembershipEvent {
    /// A new connection to a coordinator is proven.
    Connected,
    /// The coordinator has sent this message.
    Received(FromCoordinator),
}

/// An output of [`ClusterMembership`]. The driver executes effects in order.
#[derive(Debug, PartialEq)]
pub enum MembershipEffect {
    /// Send this message.
    Send(ToCoordinator),
    /// The coordinator has accepted this server: the connection may carry other messages.
    Accepted,
    /// Pass this message on to the server.
    Deliver(FromCoordinator),
    /// Close the connection. No further effect follows.
    Close(MembershipEnd),
}

/// The reason for closing a connection to a coordinator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembershipEnd {
    /// The coordinator has refused this server.
    #[error("the coordinator refused this server")]
    Refused,
    /// The coordinator will accept this server later, or does not follow the protocol.
    #[error("{0}")]
    Failed(String),
}

/// State of the process at an event.
pub struct MembershipContext<'s> {
    /// Current time.
    pub now: Instant,
    /// Wall clock.
    pub wall: UnixMillis,
    /// Liveness of the reactors; `None` until they exist.
    pub liveness: Option<&'s mut ReactorLiveness>,
}

/// Effects in execution order.
pub type MembershipEffects = VecDeque<MembershipEffect>;

/// The conversation of one process with the coordinators of its cluster.
pub struct ClusterMembership {
    /// First message on the next connection.
    join: Join,
    /// Cluster state found on disk, for a coordinator that has lost its file and asks before the
    /// reactors exist.
    remembered: Option<(ClusterMap, Holdings)>,
    /// Set if this process has ever been welcomed.
    has_joined: bool,
    /// Set if the current connection was welcomed.
    is_welcomed: bool,
    /// Set if the coordinator has asked for the map and the holdings on the current connection.
    is_described: bool,
}

impl ClusterMembership {
    /// Begins before the first connection. `remembered` is the cluster state found on disk.
    pub fn new(join: Join, remembered: Option<(ClusterMap, Holdings)>) -> ClusterMembership {
        ClusterMembership {
            join,
            remembered,
            has_joined: false,
            is_welcomed: false,
            is_described: false,
        }
    }

    /// Returns the cluster and number under which this process joins.
    pub fn number(&self) -> Option<(ClusterId, ServerId)> {
        self.join.rejoin
    }

    /// Returns whether this process has ever been welcomed.
    pub fn has_joined(&self) -> bool {
        self.has_joined
    }

    /// Returns whether the coordinator has welcomed the last connection.
    pub fn is_welcomed(&self) -> bool {
        self.is_welcomed
    }

    /// Applies one event; the only way to change the state.
    pub fn handle(
        &mut self,
        context: &mut MembershipContext<'_>,
        event: MembershipEvent,
        out: &mut MembershipEffects,
    ) {
        match event {
            MembershipEvent::Connected => {
                (self.is_welcomed, self.is_described) = (false, false);
                out.push_back(MembershipEffect::Send(ToCoordinator::Join(self.join.clone())));
            }
            MembershipEvent::Received(message) if self.is_welcomed => {
                self.receive(context, message, out);
            }
            MembershipEvent::Received(message) => self.receive_first(context, message, out),
        }
        assert!(!self.is_welcomed || self.has_joined, "a welcomed server has not joined");
        assert!(!self.has_joined || self.join.rejoin.is_some(), "a server joined without a number");
    }

    /// Handles a message of a coordinator that has welcomed this server.
    fn receive(
        &mut self,
        context: &mut MembershipContext<'_>,
        message: FromCoordinator,
        out: &mut MembershipEffects,
    ) {
        match &message {
            FromCoordinator::Mark(mark) => self.raise_mark(*mark),
            FromCoordinator::Liveness(LivenessRequest::Ping) => {
                let is_stalled = context.liveness.as_mut().is_some_and(|it| it.is_stalled());
                let pong = LivenessUpdate::Pong { is_stalled }.into();
                return out.push_back(MembershipEffect::Send(pong));
            }
            // The reactors need the reference clock too.
            FromCoordinator::Clock(question) => out.push_back(reading(context, *question)),
            _ => {}
        }
        out.push_back(MembershipEffect::Deliver(message));
    }

    /// Handles a message of a coordinator that has not welcomed this server yet.
    fn receive_first(
        &mut self,
        context: &mut MembershipContext<'_>,
        message: FromCoordinator,
        out: &mut MembershipEffects,
    ) {
        match message {
            FromCoordinator::Mark(mark) => self.raise_mark(mark),
            // The coordinator compares this server's clock before it accepts the join.
            FromCoordinator::Clock(question) => out.push_back(reading(context, question)),
            FromCoordinator::Join(reply) => self.receive_reply(context, reply, out),
            other => {
                let text = format!("unexpected first message of the coordinator: {other:?}");
                out.push_back(MembershipEffect::Close(MembershipEnd::Failed(text)));
            }
        }
    }

    /// Handles a reply to the join.
    fn receive_reply(
        &mut self,
        context: &mut MembershipContext<'_>,
        reply: JoinReply,
        out: &mut MembershipEffects,
    ) {
        match reply {
            // This may take long: report the reason to the owner that waits for the welcome.
            JoinReply::Waiting { .. } if !self.has_joined => {
                out.push_back(MembershipEffect::Deliver(reply.into()));
            }
            JoinReply::Waiting { .. } => {}
            JoinReply::Describe => {
                self.is_described = true;
                self.describe(context, out);
            }
            JoinReply::Welcome { server, cluster, .. } => {
                let number = (cluster, server);
                if self.join.rejoin.is_some_and(|known| known != number) {
                    let text = "coordinator returned another server id".to_owned();
                    return out.push_back(MembershipEffect::Close(MembershipEnd::Failed(text)));
                }
                self.join.rejoin = Some(number);
                self.is_welcomed = true;
                out.push_back(MembershipEffect::Accepted);
                if !std::mem::replace(&mut self.has_joined, true) {
                    out.push_back(MembershipEffect::Deliver(reply.into()));
                }
                let mark = self.join.mark.map(|mark| MembershipEffect::Deliver(mark.into()));
                out.extend(mark);
            }
            // An operator will act soon: reconnect, and send the description again until then.
            JoinReply::Rejected { reason, .. } if self.is_described => {
                if !self.has_joined {
                    let waiting = JoinReply::Waiting { reason: reason.clone() };
                    out.push_back(MembershipEffect::Deliver(waiting.into()));
                }
                out.push_back(MembershipEffect::Close(MembershipEnd::Failed(reason)));
            }
            JoinReply::Rejected { .. } => {
                out.push_back(MembershipEffect::Deliver(reply.into()));
                out.push_back(MembershipEffect::Close(MembershipEnd::Refused));
            }
        }
    }

    /// Sends the known map and holdings to a coordinator that has lost its file.
    fn describe(&self, context: &MembershipContext<'_>, out: &mut MembershipEffects) {
        let known = context.liveness.as_ref().map(|liveness| {
            let (map, holdings) = liveness.holdings();
            (ClusterMap::clone(&map), holdings)
        });
        let Some((map, holdings)) = known.or_else(|| self.remembered.clone()) else {
            let text = "coordinator asks for a map and holdings, and this server has neither";
            let end = MembershipEnd::Failed(text.to_owned());
            return out.push_back(MembershipEffect::Close(end));
        };
        out.push_back(MembershipEffect::Send(Description::KnownMap(Box::new(map)).into()));
        out.push_back(MembershipEffect::Send(Description::Holds(Box::new(holdings)).into()));
    }

    /// Keeps the highest mark. The server presents it to the next coordinator that it joins.
    fn raise_mark(&mut self, mark: HistoryMark) {
        if self.join.mark.is_none_or(|known| mark.is_after(&known)) {
            self.join.mark = Some(mark);
        }
        assert!(
            self.join.mark.is_some_and(|known| known == mark || !mark.is_after(&known)),
            "the server keeps a lower mark than one that it has received"
        );
    }
}

/// Returns the answer to a clock question.
fn reading(context: &MembershipContext<'_>, question: ClockQuestion) -> MembershipEffect {
    let expiry = context.liveness.as_ref().and_then(|liveness| liveness.clock(context.now));
    let reading = ClockReading { asked: question.asked, wall: context.wall, expiry };
    MembershipEffect::Send(ToCoordinator::Clock(reading))
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{LeaseId, MigrationId};
    use wire::control::MigrationRequest;

    const CLUSTER: ClusterId = ClusterId(7);
    const NUMBER: ServerId = ServerId(3);

    fn joining() -> ClusterMembership {
        let join = Join {
            host: "here".into(),
            client_port: 1,
            bus_port: 2,
            rejoin: None,
            replicas: 0,
            rack: String::new(),
            disk: None,
            former: None,
            mark: None,
        };
        ClusterMembership::new(join, None)
    }

    /// Handles an event of a process without reactors.
    fn handle(membership: &mut ClusterMembership, event: MembershipEvent) -> Vec<MembershipEffect> {
        let mut context =
            MembershipContext { now: Instant(5), wall: UnixMillis(9), liveness: None };
        let mut out = MembershipEffects::new();
        membership.handle(&mut context, event, &mut out);
        out.into()
    }

    fn receive(
        membership: &mut ClusterMembership,
        message: impl Into<FromCoordinator>,
    ) -> Vec<MembershipEffect> {
        handle(membership, MembershipEvent::Received(message.into()))
    }

    fn welcome(server: ServerId) -> JoinReply {
        JoinReply::Welcome { server, cluster: CLUSTER, seed: 1 }
    }

    /// Connects, and returns the join.
    fn connect(membership: &mut ClusterMembership) -> Join {
        match &handle(membership, MembershipEvent::Connected)[..] {
            [MembershipEffect::Send(ToCoordinator::Join(join))] => join.clone(),
            other => panic!("a connection begins with a join, not {other:?}"),
        }
    }

    fn mark(transaction: u64) -> HistoryMark {
        HistoryMark { term: 1, term_id: 7, transaction }
    }

    #[test]
    fn a_server_joins_and_comes_back_under_its_number_with_the_highest_mark() {
        let mut membership = joining();
        assert_eq!(connect(&mut membership).rejoin, None);
        let first = receive(&mut membership, welcome(NUMBER));
        let deliver = MembershipEffect::Deliver(welcome(NUMBER).into());
        assert_eq!(first, [MembershipEffect::Accepted, deliver]);
        for transaction in [3, 9, 8] {
            let told = FromCoordinator::Mark(mark(transaction));
            let passed_on = MembershipEffect::Deliver(told.clone());
            assert_eq!(receive(&mut membership, told), [passed_on]);
        }
        let again = connect(&mut membership);
        assert!(!membership.is_welcomed());
        assert_eq!((again.rejoin, again.mark), (Some((CLUSTER, NUMBER)), Some(mark(9))));
        let second = receive(&mut membership, welcome(NUMBER));
        let deliver = MembershipEffect::Deliver(FromCoordinator::Mark(mark(9)));
        assert_eq!(second, [MembershipEffect::Accepted, deliver], "it needs one welcome only");
    }

    #[test]
    fn a_server_never_takes_another_number() {
        let mut membership = joining();
        connect(&mut membership);
        receive(&mut membership, welcome(NUMBER));
        connect(&mut membership);
        let effects = receive(&mut membership, welcome(ServerId(4)));
        let failed = matches!(effects[..], [MembershipEffect::Close(MembershipEnd::Failed(_))]);
        assert!(failed, "{effects:?}");
        assert_eq!(membership.number(), Some((CLUSTER, NUMBER)));
    }

    #[test]
    fn questions_are_answered_at_once() {
        let mut membership = joining();
        connect(&mut membership);
        let question =
            ClockQuestion { asked: Instant(1), reference: None, lease_horizon: LeaseId(0) };
        let answer = ClockReading { asked: question.asked, wall: UnixMillis(9), expiry: None };
        let answer = || MembershipEffect::Send(ToCoordinator::Clock(answer));
        let first = receive(&mut membership, FromCoordinator::Clock(question));
        assert_eq!(first, [answer()], "there are no reactors yet");
        receive(&mut membership, welcome(NUMBER));
        let passed_on = MembershipEffect::Deliver(FromCoordinator::Clock(question));
        let effects = receive(&mut membership, FromCoordinator::Clock(question));
        assert_eq!(effects, [answer(), passed_on]);
        let pong = MembershipEffect::Send(LivenessUpdate::Pong { is_stalled: false }.into());
        assert_eq!(receive(&mut membership, LivenessRequest::Ping), [pong]);
    }

    #[test]
    fn a_refusal_ends_the_connection_and_a_wait_does_not() {
        let mut membership = joining();
        connect(&mut membership);
        let waiting = JoinReply::Waiting { reason: "wait".into() };
        let effects = receive(&mut membership, waiting.clone());
        assert_eq!(effects, [MembershipEffect::Deliver(waiting.into())]);
        let refusal = JoinReply::Rejected { reason: "no".into(), is_fenced: false };
        let effects = receive(&mut membership, refusal.clone());
        let close = MembershipEffect::Close(MembershipEnd::Refused);
        assert_eq!(effects, [MembershipEffect::Deliver(refusal.into()), close]);
    }

    #[test]
    fn a_message_before_the_welcome_ends_the_connection() {
        let mut membership = joining();
        connect(&mut membership);
        let early = MigrationRequest::Decide { migration: MigrationId(1) };
        let effects = receive(&mut membership, early);
        let failed = matches!(effects[..], [MembershipEffect::Close(MembershipEnd::Failed(_))]);
        assert!(failed, "{effects:?}");
    }

    #[test]
    fn a_server_without_a_map_cannot_describe_the_cluster() {
        let mut membership = joining();
        connect(&mut membership);
        let effects = receive(&mut membership, JoinReply::Describe);
        let failed = matches!(effects[..], [MembershipEffect::Close(MembershipEnd::Failed(_))]);
        assert!(failed, "{effects:?}");
    }
}
