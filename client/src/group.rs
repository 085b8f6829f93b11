//! A broker group as a client sees it: its members, and who leads it as far as is known.
//!
//! What is known may be old. It decides only whom to ask first; a node that does not lead says so itself
//! (50002 with `x-mq-leader`), and nothing is proposed there.

use std::time::{Duration, Instant};

use mq_protocol::headers::LeaderHint;
use mq_protocol::{cluster, v2};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::core::Core;

/// How long a leader that could not be reached is not believed in on the word of others.
const SUSPICION: Duration = Duration::from_secs(1);
/// Time for one member's answer to "who leads?".
const PROBE_TIMEOUT: Duration = Duration::from_millis(300);
/// Members kept per group; they come from servers' answers, so there is a bound.
const MEMBERS_MAX: usize = 32;

/// A leader's address for clients and its term (0 = not known).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Leader {
    pub(crate) address: String,
    pub(crate) term: u64,
}

impl Leader {
    /// Reads the value of `x-mq-leader`.
    pub(crate) fn parse(header: &str) -> Option<Self> {
        let hint: LeaderHint = header.parse().ok()?;
        crate::address::check_address(&hint.address).ok()?;
        Some(Self { address: hint.address, term: hint.term })
    }
}

/// Where a member can be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) client_address: String,
    /// Empty when only the port for clients is known.
    pub(crate) api_address: String,
}

impl Member {
    pub(crate) fn from_status(status: &cluster::MemberStatus) -> Option<Self> {
        crate::address::check_address(&status.client_address).ok()?;
        Some(Self { client_address: status.client_address.clone(), api_address: status.api_address.clone() })
    }
}

#[derive(Debug)]
pub(crate) struct BrokerGroup {
    pub(crate) name: String,
    state: Mutex<State>,
    /// Bumped whenever another leader is known.
    changed: watch::Sender<u64>,
    /// Held while the members are asked: one round serves everybody who waits. Holds the end of the last round.
    round: tokio::sync::Mutex<Option<Instant>>,
}

#[derive(Debug, Default)]
struct State {
    members: Vec<Member>,
    leader: Option<Leader>,
    suspect: Option<(Leader, Instant)>,
    /// A topic of the group, for asking a port for clients.
    topic: Option<v2::Resource>,
}

/// What one member answered.
#[derive(Debug)]
pub(crate) struct Sighting {
    pub(crate) leader: Option<Leader>,
    /// The member itself is that leader.
    pub(crate) is_itself: bool,
    pub(crate) members: Vec<Member>,
}

impl BrokerGroup {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            state: Mutex::default(),
            changed: watch::Sender::new(0),
            round: tokio::sync::Mutex::default(),
        }
    }

    pub(crate) fn leader(&self) -> Option<Leader> {
        self.state.lock().leader.clone()
    }

    pub(crate) fn members(&self) -> Vec<Member> {
        self.state.lock().members.clone()
    }

    pub(crate) fn set_members(&self, members: Vec<Member>) {
        if !members.is_empty() {
            self.state.lock().members = members.into_iter().take(MEMBERS_MAX).collect();
        }
    }

    pub(crate) fn set_topic(&self, topic: v2::Resource) {
        self.state.lock().topic = Some(topic);
    }

    /// Takes over who leads, unless a newer term is known or that leader is under suspicion.
    /// `is_itself`: the leader's own word, which ends a suspicion. True when it is now the one to ask.
    pub(crate) fn learn(&self, leader: &Leader, is_itself: bool) -> bool {
        let mut state = self.state.lock();
        if !is_itself && state.is_suspect(leader) {
            return false;
        }
        if let Some(known) = &state.leader {
            let older = leader.term != 0 && leader.term < known.term;
            if older && known.address != leader.address {
                return false;
            }
            if known.address == leader.address {
                let term = known.term.max(leader.term);
                state.leader = Some(Leader { term, ..leader.clone() });
                return true;
            }
        }
        state.leader = Some(leader.clone());
        drop(state);
        self.changed.send_modify(|count| *count += 1);
        true
    }

    /// The address did not answer as a leader: it is not the one to ask any more.
    pub(crate) fn suspect(&self, address: &str) {
        let mut state = self.state.lock();
        if state.leader.as_ref().is_some_and(|leader| leader.address == address)
            && let Some(leader) = state.leader.take()
        {
            state.suspect = Some((leader, Instant::now()));
        }
    }

    /// Resolves when another address than `address` is known to lead.
    pub(crate) async fn moved_from(&self, address: &str) {
        let mut changes = self.changed.subscribe();
        loop {
            if self.leader().is_some_and(|leader| leader.address != address) {
                return;
            }
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Asks all members who leads; at most one round at a time. True when a leader is known afterwards.
    pub(crate) async fn find_leader(&self, core: &Core) -> bool {
        let asked = Instant::now();
        let mut last_round = self.round.lock().await;
        if last_round.is_none_or(|ended| ended < asked) {
            self.ask_members(core).await;
            *last_round = Some(Instant::now());
        }
        self.leader().is_some()
    }

    async fn ask_members(&self, core: &Core) {
        let (members, topic) = {
            let state = self.state.lock();
            (state.members.clone(), state.topic.clone())
        };
        let majority = members.len() / 2 + 1;
        let mut answers: futures::stream::FuturesUnordered<_> =
            members.iter().map(|member| self.ask(core, member, topic.clone())).collect();
        let mut named: Vec<(Leader, usize)> = Vec::new();
        while let Some(answer) = futures::StreamExt::next(&mut answers).await {
            let Some(sighting) = answer else { continue };
            self.set_members(sighting.members);
            let Some(leader) = sighting.leader else { continue };
            if sighting.is_itself && self.learn(&leader, true) {
                return;
            }
            let count = count_named(&mut named, leader.clone());
            if count >= majority && self.learn(&leader, false) {
                return;
            }
        }
        // Nobody leads by its own word, and no majority agrees: the newest word is worth a try.
        if let Some((leader, _)) = named.into_iter().max_by_key(|(leader, _)| leader.term) {
            self.learn(&leader, false);
        }
    }

    async fn ask(&self, core: &Core, member: &Member, topic: Option<v2::Resource>) -> Option<Sighting> {
        let by_status = async {
            if member.api_address.is_empty() {
                return None;
            }
            core.group_status(&member.api_address, &self.name, PROBE_TIMEOUT).await.ok()
        };
        if let Some(sighting) = by_status.await {
            return Some(sighting);
        }
        let leader = core.leader_by_route(&member.client_address, &self.name, topic?, PROBE_TIMEOUT).await?;
        Some(Sighting {
            leader: Some(Leader { address: leader, term: 0 }),
            is_itself: false,
            members: Vec::new(),
        })
    }
}

impl State {
    fn is_suspect(&self, leader: &Leader) -> bool {
        self.suspect.as_ref().is_some_and(|(suspect, since)| {
            suspect.address == leader.address && leader.term <= suspect.term && since.elapsed() < SUSPICION
        })
    }
}

fn count_named(named: &mut Vec<(Leader, usize)>, leader: Leader) -> usize {
    if let Some((_, count)) = named.iter_mut().find(|(known, _)| *known == leader) {
        *count += 1;
        return *count;
    }
    named.push((leader, 1));
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leader(port: u16, term: u64) -> Leader {
        Leader { address: format!("127.0.0.1:{port}"), term }
    }

    #[test]
    fn the_leader_header_is_read_and_checked() {
        assert_eq!(Leader::parse("2,7,127.0.0.1:8081"), Some(leader(8081, 7)));
        assert_eq!(Leader::parse("2, 7, 127.0.0.1:8081"), Some(leader(8081, 7)));
        for bad in ["", "2", "2,7", "2,7,", "2,7,nowhere", "x,7,a:1", "2,x,a:1"] {
            assert_eq!(Leader::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_older_term_never_replaces_a_newer_one() {
        let group = BrokerGroup::new("broker-a");
        assert!(group.learn(&leader(1, 5), false));
        assert!(!group.learn(&leader(2, 4), false));
        assert_eq!(group.leader(), Some(leader(1, 5)));
        assert!(group.learn(&leader(2, 6), false));
        assert_eq!(group.leader(), Some(leader(2, 6)));
    }

    #[test]
    fn a_suspect_is_believed_again_only_at_a_newer_term_or_on_its_own_word() {
        let group = BrokerGroup::new("broker-a");
        group.learn(&leader(1, 5), false);
        group.suspect("127.0.0.1:1");
        assert!(!group.learn(&leader(1, 5), false));
        assert_eq!(group.leader(), None);
        assert!(group.learn(&leader(1, 5), true));
        group.suspect("127.0.0.1:1");
        assert!(group.learn(&leader(1, 6), false));
    }

    #[tokio::test]
    async fn a_move_wakes_those_who_wait_at_the_old_leader() {
        let group = BrokerGroup::new("broker-a");
        group.learn(&leader(1, 5), false);
        let wait = group.moved_from("127.0.0.1:1");
        tokio::pin!(wait);
        assert!(futures::poll!(&mut wait).is_pending());
        group.learn(&leader(1, 6), false);
        assert!(futures::poll!(&mut wait).is_pending());
        group.learn(&leader(2, 7), false);
        assert!(futures::poll!(&mut wait).is_ready());
    }
}
