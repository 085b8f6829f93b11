//! How messages reach consumers (POP): the leader picks, `deliver` items in the log decide, acks settle.
//!
//! What always holds: a message is handed out only when apply accepted its `deliver` in the term of the pick. So two
//! leaders, or two calls, never hand out the same delivery, and who has what survives a failover.

mod ack;
mod deliver;
mod filter;
mod hold;
mod picker;
pub(crate) mod read;
mod receive;
mod reservation;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use mq_protocol::token::ReceiptHandle;
use mq_protocol::v2;
use mq_raft::{Leadership, RaftGroup};
use mq_store::Term;
use tokio::sync::{Semaphore, watch};

pub use ack::Subscription;
pub use filter::Filter;

use crate::error::BrokerError;
use crate::state::StateView;
use picker::Picker;

/// The refusal of a receive whose files did not answer before its deadline; nothing was proposed.
fn slow_files() -> BrokerError {
    BrokerError::Busy { what: "receives that wait for files beyond their deadline", value: 1, limit: 0 }
}

/// Messages of one answer, at most.
pub const MAX_BATCH: usize = 32;
/// Invisible time of deliveries that the server is to renew.
pub const RENEWED_INVISIBLE: Duration = Duration::from_secs(60);
/// Invisible time that is left when a client goes away.
const GONE_INVISIBLE: Duration = Duration::from_secs(1);
/// Receives of one broker group that may be under way.
const MAX_RECEIVES: usize = 10_000;

/// A receive.
#[derive(Clone, Debug)]
pub struct Receive {
    /// Namespace of topic and group.
    pub namespace: String,
    /// Subscription group.
    pub group: String,
    /// Topic.
    pub topic: String,
    /// Wanted messages.
    pub filter: Filter,
    /// Messages at most; cut to 32.
    pub batch: usize,
    /// How long others do not see what is handed out; 60 s when absent.
    pub invisible: Option<Duration>,
    /// The server renews the invisible time (60 s, whatever `invisible` says).
    pub auto_renew: bool,
    /// Who receives.
    pub client_id: String,
    /// Key of a repeated receive of an ordered group.
    pub attempt_id: String,
    /// Until when to wait for a message.
    pub poll_until: Instant,
    /// Until when the answer must be there.
    pub deadline: Instant,
}

/// A message that is handed out.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivered {
    /// The message with its receipt handle.
    pub message: v2::Message,
}

/// Deliveries of one broker group.
pub struct Consumer {
    raft: RaftGroup,
    /// Name of the broker group; part of each receipt handle.
    name: String,
    view: StateView,
    picker: Arc<Picker>,
    leadership: watch::Receiver<Leadership>,
    receives: Semaphore,
}

impl std::fmt::Debug for Consumer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Consumer").field("group", &self.name).finish_non_exhaustive()
    }
}

impl Consumer {
    /// Serves the deliveries of the broker group `name`.
    #[must_use]
    pub fn new(name: &str, raft: RaftGroup, view: StateView) -> Arc<Self> {
        let leadership = raft.leadership();
        Arc::new(Self {
            raft,
            name: name.to_owned(),
            picker: Arc::new(Picker::new(view.clone())),
            view,
            leadership,
            receives: Semaphore::new(MAX_RECEIVES),
        })
    }

    /// Receives under way, most of which wait.
    #[must_use]
    pub fn receives(&self) -> usize {
        MAX_RECEIVES - self.receives.available_permits()
    }

    /// The term in which this node leads and has applied its own first entry.
    fn leading(&self) -> Result<Term, BrokerError> {
        let leadership = self.leadership.borrow();
        match leadership.me && leadership.ready {
            true => Ok(leadership.term),
            false => Err(BrokerError::NotLeader { leader: leadership.leader.clone() }),
        }
    }

    /// Takes a receipt handle apart and checks that it belongs to this topic and group of this broker group.
    fn handle(&self, text: &str, group_id: u32, topic_id: u32) -> Result<ReceiptHandle, BrokerError> {
        let invalid = |reason| BrokerError::InvalidHandle { reason };
        let handle = ReceiptHandle::decode(text).map_err(|error| {
            tracing::debug!(%error, "receipt handle refused");
            invalid("it was not made here")
        })?;
        if handle.broker_group != self.name {
            return Err(invalid("it belongs to another broker group"));
        }
        if handle.group_id != group_id {
            return Err(invalid("it belongs to another subscription group"));
        }
        if handle.topic_id != topic_id {
            return Err(invalid("it belongs to another topic"));
        }
        Ok(handle)
    }
}
