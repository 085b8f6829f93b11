//! One name server as the API sees it: the Raft group, the state that it shows, and the soft state beside it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mq_raft::{Leadership, RaftGroup};
use mq_runtime::clock::Clock;
use mq_runtime::random::Random;
use mq_store::Term;
use prost::Message;
use tonic::transport::Channel;

use crate::api::call::Call;
use crate::command::Command;
use crate::contact::Contact;
use crate::error::NameError;
use crate::liveness::Liveness;
use crate::metrics::NameMetrics;
use crate::name_state::NameState;
use crate::peers::Peers;

/// A proof of contact that is younger than this counts for signs of life; it is renewed each 3 s.
const STILL_LEADS_MS: u64 = 5_000;

/// What the parts of a name server share.
pub struct Node {
    /// Name of the cluster.
    pub cluster: String,
    /// Name of this node.
    pub name: String,
    /// The name group.
    pub raft: RaftGroup,
    /// What it knows.
    pub state: NameState,
    /// Whom the leader has heard of.
    pub liveness: Liveness,
    /// When the leader was last reached.
    pub contact: Contact,
    /// The other name servers.
    pub peers: Peers,
    /// Monotonic time.
    pub clock: Arc<dyn Clock>,
    /// Numbers of digest marks.
    pub random: Random,
    /// Longest wait for a leader within one call.
    pub leader_wait: Duration,
    /// Watchers of settings that may still come.
    pub watchers: Arc<tokio::sync::Semaphore>,
    /// Figures.
    pub metrics: NameMetrics,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node")
            .field("cluster", &self.cluster)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Where a change is decided.
pub enum Leader {
    /// Here, in this term.
    Here(Term),
    /// At the other end of this connection.
    There(Channel),
}

impl Node {
    /// Now, by the monotonic clock.
    pub fn now_ms(&self) -> u64 {
        self.clock.monotonic_ms()
    }

    /// The leader that a call has to go to. Waits a little for one to be elected.
    pub async fn leader(&self, call: &Call) -> Result<Leader, NameError> {
        let give_up = call.answer_by.min(Instant::now() + self.leader_wait);
        let mut leadership = self.raft.leadership();
        loop {
            let seen = leadership.borrow_and_update().clone();
            if let Some(leader) = self.leader_of(&seen, call) {
                return Ok(leader);
            }
            match tokio::time::timeout_at(give_up.into(), leadership.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(NameError::Stopped),
                Err(_) => return Err(NameError::NoLeader),
            }
        }
    }

    /// A call that was passed on already stays here, whoever leads.
    fn leader_of(&self, seen: &Leadership, call: &Call) -> Option<Leader> {
        if seen.me {
            return seen.ready.then_some(Leader::Here(seen.term));
        }
        let leader = seen.leader.as_ref().filter(|_| !call.forwarded)?;
        self.peers.channel(&leader.api_address).map(Leader::There)
    }

    /// Proposes a command in a term that this node leads, and returns what apply answered: a `NameKvResult` to a
    /// change of a setting, else a `NameResult`.
    pub async fn propose<T: Message + Default>(
        &self,
        term: Term,
        command: &Command,
        until: Instant,
    ) -> Result<T, NameError> {
        let proposed = self.raft.propose(term, vec![command.encode()], until).await?;
        let answer = proposed.results.into_iter().next().and_then(|bytes| T::decode(bytes).ok());
        answer.ok_or(NameError::Unknown("apply gave no answer"))
    }

    /// Waits until this node shows everything that was confirmed before the call.
    pub async fn barrier(&self, until: Instant) -> Result<(), NameError> {
        let began = self.now_ms();
        self.raft.read_barrier(until).await?;
        self.contact.proven(began);
        Ok(())
    }

    /// For what the leader decides from its own state: proves that it still leads, unless it did so just now.
    pub async fn still_leads(&self, call: &Call) -> Result<(), NameError> {
        match self.contact.age_ms(self.now_ms()) {
            Some(age) if age < STILL_LEADS_MS => Ok(()),
            _ => self.barrier(call.answer_by).await,
        }
    }

    /// API addresses of the name servers that have a vote, as the membership has them. Whoever asks one learns of the
    /// others here: name servers are added and replaced without a restart of anybody else.
    pub fn name_servers(&self) -> Vec<String> {
        let members = self.raft.status().members;
        members.into_iter().filter(|member| member.voter).map(|member| member.api_address).collect()
    }

    /// Refuses what would be answered from a state of unknown age.
    pub fn fresh(&self) -> Result<(), NameError> {
        let now = self.now_ms();
        if self.contact.is_fresh(now) {
            return Ok(());
        }
        Err(NameError::CutOff { age_s: self.contact.age_ms(now).unwrap_or(now) / 1_000 })
    }
}
