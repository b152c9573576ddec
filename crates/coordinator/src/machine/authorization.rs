//! Authorization of messages by sender: which messages a connection may send. See "Who may say
//! what" in `docs/design/trust.md`. The functions that process a message check that its sender
//! has the right role in *that* migration or recovery.

use crate::outbox::Caller;
use types::ServerId;
use wire::control::{Ask, ToCoordinator};

/// Checks that a connection may send this message. `joined` is the number under which it joined.
///
/// # Errors
/// The reason, for the operator.
pub(super) fn judge(
    caller: Caller,
    joined: Option<ServerId>,
    message: &ToCoordinator,
) -> Result<(), &'static str> {
    match message {
        ToCoordinator::Join(join) => match caller {
            Caller::Server { number, .. } if number == join.rejoin => Ok(()),
            Caller::Server { .. } => Err("the join has another server number than the handshake"),
            Caller::Operator => Err("an operator's connection may only send requests"),
        },
        ToCoordinator::Ask { ask, .. } => match (caller, joined) {
            (Caller::Operator, _) => Ok(()),
            (Caller::Server { .. }, Some(_)) => asked_by_server(ask),
            (Caller::Server { .. }, None) => Err(NOT_JOINED),
        },
        ToCoordinator::Clock(_) => match (caller, joined) {
            (Caller::Server { .. }, Some(_)) | (Caller::Server { number: None, .. }, None) => {
                Ok(())
            }
            (Caller::Server { .. }, None) => Err(NOT_JOINED),
            (Caller::Operator, _) => Err("an operator's connection may only send requests"),
        },
        ToCoordinator::Described(_)
        | ToCoordinator::Liveness(_)
        | ToCoordinator::Holding { .. }
        | ToCoordinator::Migration(_)
        | ToCoordinator::Log(_)
        | ToCoordinator::Recovery(_) => match (caller, joined) {
            (Caller::Server { .. }, Some(_)) => Ok(()),
            (Caller::Server { .. }, None) => Err(NOT_JOINED),
            (Caller::Operator, _) => Err("an operator's connection may only send requests"),
        },
    }
}

const NOT_JOINED: &str = "the first message must be a join";

/// Checks that a server may send this ask, for itself or for its clients.
fn asked_by_server(ask: &Ask) -> Result<(), &'static str> {
    match ask {
        Ask::Migrate { .. }
        | Ask::Cancel { .. }
        | Ask::List { .. }
        | Ask::Flush { .. }
        | Ask::Recoveries
        | Ask::Health
        | Ask::Standing
        | Ask::Clocks
        | Ask::Lease { .. }
        | Ask::Map => Ok(()),
        Ask::AcceptLoss { .. } | Ask::Rebuild { .. } => {
            Err("Only an operator may decide this: use 'ballast cluster'")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{ClusterId, Generation};

    const ME: ServerId = ServerId(0);
    const NUMBER: Option<(ClusterId, ServerId)> = Some((ClusterId(0), ME));

    fn server(number: Option<(ClusterId, ServerId)>) -> Caller {
        Caller::Server { number, generation: Generation(1) }
    }

    /// Returns a message of each family: its number, followed by fields that are all zero.
    fn messages() -> Vec<ToCoordinator> {
        let decoded = |number: u8| {
            let bytes = [&[number][..], &[0; 64]].concat();
            postcard::take_from_bytes(&bytes).map(|(message, _)| message).ok()
        };
        (0..).map_while(decoded).collect()
    }

    fn asks() -> Vec<Ask> {
        let decoded = |number: u8| {
            let bytes = [&[number][..], &[0; 64]].concat();
            postcard::take_from_bytes(&bytes).map(|(ask, _)| ask).ok()
        };
        (0..).map_while(decoded).collect()
    }

    fn is_ask(message: &ToCoordinator) -> bool {
        matches!(message, ToCoordinator::Ask { .. })
    }

    fn is_join(message: &ToCoordinator) -> bool {
        matches!(message, ToCoordinator::Join(_))
    }

    #[test]
    fn operators_ask_and_do_nothing_else() {
        assert_eq!(messages().len(), 9, "messages can be read from zeros");
        for message in messages() {
            assert_eq!(judge(Caller::Operator, None, &message).is_ok(), is_ask(&message));
        }
    }

    #[test]
    fn who_has_not_joined_may_only_join_and_only_as_what_it_proved_and_show_its_clock() {
        for message in messages() {
            // The number in the zero-filled join is `None`.
            let may = is_join(&message) || matches!(message, ToCoordinator::Clock(_));
            assert_eq!(judge(server(None), None, &message).is_ok(), may);
            assert!(judge(server(NUMBER), None, &message).is_err(), "{message:?}");
        }
    }

    #[test]
    fn servers_say_all_but_what_people_decide() {
        for message in messages().iter().filter(|message| !is_ask(message) && !is_join(message)) {
            assert_eq!(judge(server(NUMBER), Some(ME), message), Ok(()));
        }
        for ask in asks() {
            let is_decision = matches!(ask, Ask::AcceptLoss { .. } | Ask::Rebuild { .. });
            let message = ToCoordinator::Ask { request: 1, ask };
            assert_eq!(judge(server(NUMBER), Some(ME), &message).is_err(), is_decision);
            assert!(judge(Caller::Operator, None, &message).is_ok(), "{message:?}");
        }
        assert_eq!(asks().len(), 12);
    }
}
