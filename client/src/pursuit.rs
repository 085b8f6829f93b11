//! One call to whoever leads a broker group: follows redirects, passes over dead nodes, leaves frozen ones.
//!
//! ```text
//!  leader known? ── no ──> ask the members ── none ──> refresh the route, pause (10 -> 200 ms), again
//!       │ yes                     │ found
//!       v                         v
//!  connect ── failed ──> nothing was sent; ask the members
//!       │
//!  call ── no answer for a while ──> ask the members meanwhile; another leader is known ──> leave (unknown)
//!       │
//!  answer: 50002 ──> nothing was proposed; go where `x-mq-leader` says
//! ```

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use mq_protocol::v2::messaging_service_client::MessagingServiceClient;
use mq_runtime::random;
use tokio::time::Instant;
use tonic::transport::Channel;

use crate::connection::chain;
use crate::core::Core;
use crate::error::Cause;
use crate::group::{BrokerGroup, Leader};

const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// Redirects followed at once before a pause: two nodes that name each other must not spin.
const HOPS_AT_ONCE: u32 = 4;
/// Pause between two rounds of asking the members while an answer is missing.
const DOUBT_PAUSE: Duration = Duration::from_millis(100);
/// Without a leader for this long, the route is asked for again.
const ROUTE_AGE_WITHOUT_LEADER: Duration = Duration::from_millis(500);

pub(crate) type MessagingClient = MessagingServiceClient<Channel>;

/// How one attempt went.
#[derive(Debug)]
pub(crate) enum Attempt<T> {
    /// The node answered.
    Answer(tonic::Response<T>),
    /// Nothing left this client.
    NeverSent(Cause),
    /// The request left, and no answer came: it may have been done.
    Lost(Cause),
}

/// How patient a kind of call is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// Longest time for one attempt.
    pub(crate) attempt: Duration,
    /// After this long without an answer the members are asked who leads.
    pub(crate) doubt_after: Duration,
}

pub(crate) struct Pursuit<'a> {
    core: &'a Arc<Core>,
    group: &'a Arc<BrokerGroup>,
    topic: &'a mq_protocol::v2::Resource,
    pause: Duration,
    hops: u32,
    without_leader_since: Option<Instant>,
    /// Where the last attempt went.
    address: String,
}

impl<'a> Pursuit<'a> {
    pub(crate) fn new(
        core: &'a Arc<Core>,
        group: &'a Arc<BrokerGroup>,
        topic: &'a mq_protocol::v2::Resource,
    ) -> Self {
        Self {
            core,
            group,
            topic,
            pause: PAUSE_MIN,
            hops: 0,
            without_leader_since: None,
            address: String::new(),
        }
    }

    /// Finds the leader and calls it once. `call` gets the time that the server has.
    pub(crate) async fn attempt<T, F, R>(
        &mut self,
        deadline: Instant,
        patience: Patience,
        call: F,
    ) -> Attempt<T>
    where
        F: FnOnce(MessagingClient, Duration) -> R,
        R: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        let leader = match tokio::time::timeout_at(deadline, self.leader()).await {
            Ok(Some(leader)) => leader,
            Ok(None) | Err(_) => {
                return Attempt::NeverSent(Cause::NoLeader { broker_group: self.group.name.clone() });
            }
        };
        self.address.clone_from(&leader.address);
        let lease = match tokio::time::timeout_at(deadline, self.core.pool.lease(&leader.address)).await {
            Ok(Ok(lease)) => lease,
            Ok(Err(cause)) => {
                self.group.suspect(&leader.address);
                return Attempt::NeverSent(cause);
            }
            Err(_) => {
                let reason = "no connection before the deadline".to_owned();
                return Attempt::NeverSent(Cause::Connect { address: leader.address, reason });
            }
        };
        let started = Instant::now();
        let until = deadline.min(started + patience.attempt);
        let call = call(self.core.messaging(lease.channel.clone()), until - started);
        tokio::select! {
            answer = tokio::time::timeout_at(until, call) => match answer {
                Ok(Ok(response)) => Attempt::Answer(response),
                Ok(Err(status)) => {
                    lease.discard();
                    // A server that says "too late" is there; everything else may be its end.
                    if !matches!(status.code(), tonic::Code::DeadlineExceeded | tonic::Code::Cancelled) {
                        self.group.suspect(&leader.address);
                    }
                    Attempt::Lost(Cause::Transport { address: leader.address, reason: status_text(&status) })
                }
                Err(_) => {
                    lease.discard();
                    Attempt::Lost(Cause::Deadline { after: started.elapsed() })
                }
            },
            () = self.doubt(&leader.address, patience.doubt_after) => {
                lease.discard();
                let reason = "another node leads now".to_owned();
                Attempt::Lost(Cause::Transport { address: leader.address, reason })
            }
        }
    }

    /// The node that was asked does not lead: next time ask the one it names.
    /// True when that is worth doing at once.
    pub(crate) fn not_leader(&mut self, hint: Option<&Leader>) -> bool {
        let Some(hint) = hint.filter(|hint| hint.address != self.address) else {
            self.group.suspect(&self.address);
            return false;
        };
        // Its own word that it does not lead counts more than what was known about it.
        self.group.suspect(&self.address);
        self.hops += 1;
        self.group.learn(hint, false) && self.hops <= HOPS_AT_ONCE
    }

    /// The attempt failed on its way: try again at once, or after a pause when that has been done too often.
    pub(crate) async fn again(&mut self, deadline: Instant, cause: &Cause) {
        self.hops += 1;
        if matches!(cause, Cause::NoLeader { .. }) || self.hops > HOPS_AT_ONCE {
            self.pause(deadline).await;
        }
    }

    /// Waits before the next attempt, longer each time, at most until the deadline.
    pub(crate) async fn pause(&mut self, deadline: Instant) {
        let jitter = Duration::from_micros(random::u64() % 5_000);
        tokio::time::sleep_until(deadline.min(Instant::now() + self.pause + jitter)).await;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        self.hops = 0;
    }

    async fn leader(&mut self) -> Option<Leader> {
        if let Some(leader) = self.group.leader() {
            self.without_leader_since = None;
            return Some(leader);
        }
        if self.group.find_leader(self.core).await {
            self.without_leader_since = None;
            return self.group.leader();
        }
        let since = *self.without_leader_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= ROUTE_AGE_WITHOUT_LEADER {
            self.without_leader_since = None;
            tokio::select! {
                () = self.core.refresh_route(self.topic) => {}
                () = self.group.moved_from("") => {}
            }
        }
        self.group.leader()
    }

    /// Resolves when, after `patience`, another node is found to lead.
    async fn doubt(&self, address: &str, patience: Duration) {
        let moved = self.group.moved_from(address);
        let ask = async {
            tokio::time::sleep(patience).await;
            loop {
                self.group.find_leader(self.core).await;
                tokio::time::sleep(DOUBT_PAUSE).await;
            }
        };
        tokio::select! {
            () = moved => {}
            () = ask => {}
        }
    }
}

pub(crate) fn status_text(status: &tonic::Status) -> String {
    let detail = std::error::Error::source(status).map(chain).unwrap_or_default();
    match (status.message().is_empty(), detail.is_empty()) {
        (false, true) => format!("{:?}: {}", status.code(), status.message()),
        (false, false) => format!("{:?}: {} ({detail})", status.code(), status.message()),
        (true, _) => format!("{:?} {detail}", status.code()),
    }
}
