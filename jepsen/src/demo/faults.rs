//! Kills the two leaders while lines are in flight, and proves that it hit what it aimed at.

use std::time::{Duration, Instant};

use anyhow::{bail, ensure};

use super::send::Sender;
use crate::cluster::{Cluster, NodeView, Observer};

const NEW_LEADER_LIMIT: Duration = Duration::from_secs(20);
const PROGRESS_LIMIT: Duration = Duration::from_secs(120);

/// One killed leader.
#[derive(Debug, Clone)]
pub struct Killed {
    /// `broker-a` or `name servers`.
    pub group: &'static str,
    /// The node.
    pub node: String,
    /// Its process.
    pub pid: i32,
    /// The term that it led.
    pub term: u64,
    /// Sends without an outcome at that moment.
    pub in_flight: usize,
    /// The next leader.
    pub successor: String,
    /// Its term.
    pub successor_term: u64,
    /// From the signal until the new leader was seen to be ready.
    pub after: Duration,
}

impl Killed {
    /// Why this kill proves nothing, if so.
    pub fn objection(&self) -> Option<String> {
        if self.in_flight == 0 {
            return Some(format!("no send was in flight when {} was killed", self.node));
        }
        if self.successor_term <= self.term {
            let (node, term, next) = (&self.node, self.term, self.successor_term);
            return Some(format!(
                "{node} did not lead: it was killed in term {term}, the next leader has {next}"
            ));
        }
        None
    }
}

/// After a third the leader of the broker group, after two thirds the leader of the name servers.
pub async fn kill_both(
    cluster: &Cluster,
    observer: &Observer,
    sender: &Sender,
) -> anyhow::Result<[Killed; 2]> {
    await_percent(sender, 33).await?;
    let broker = kill(cluster, observer, sender, Group::Brokers).await?;
    await_percent(sender, 66).await?;
    let name_server = kill(cluster, observer, sender, Group::Names).await?;
    Ok([broker, name_server])
}

#[derive(Clone, Copy)]
enum Group {
    Brokers,
    Names,
}

impl Group {
    async fn leader(self, observer: &Observer) -> Option<NodeView> {
        match self {
            Self::Brokers => observer.broker_leader().await,
            Self::Names => observer.name_leader().await,
        }
    }

    /// Asks the node alone: the shortest way from "it leads" to the signal.
    async fn still_leads(self, observer: &Observer, leader: &NodeView) -> bool {
        let view = match self {
            Self::Brokers => observer.broker(&leader.node).await.and_then(|views| views.into_iter().next()),
            Self::Names => observer.name_server(&leader.node).await,
        };
        view.is_some_and(|view| view.leads() && view.group.term == leader.group.term)
    }
}

async fn await_percent(sender: &Sender, percent: u64) -> anyhow::Result<()> {
    let end = Instant::now() + PROGRESS_LIMIT;
    while sender.percent() < percent {
        ensure!(
            Instant::now() < end,
            "only {} % are sent after {} s",
            sender.percent(),
            PROGRESS_LIMIT.as_secs()
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

async fn kill(
    cluster: &Cluster,
    observer: &Observer,
    sender: &Sender,
    group: Group,
) -> anyhow::Result<Killed> {
    let end = Instant::now() + NEW_LEADER_LIMIT;
    let leader = loop {
        ensure!(Instant::now() < end, "no leader to kill within {} s", NEW_LEADER_LIMIT.as_secs());
        let Some(leader) = group.leader(observer).await else { continue };
        if group.still_leads(observer, &leader).await {
            break leader;
        }
    };
    // Some milliseconds at most: the sender always has something in flight while lines are left.
    while sender.in_flight() == 0 && Instant::now() < end {
        tokio::time::sleep(Duration::from_micros(200)).await;
    }
    let in_flight = sender.in_flight();
    let began = Instant::now();
    let process = cluster.kill(&leader.node).await?;
    let successor = loop {
        match group.leader(observer).await {
            Some(next) if next.node != leader.node => break next,
            _ if Instant::now() > began + NEW_LEADER_LIMIT => {
                bail!(
                    "no new leader within {} s after {} was killed",
                    NEW_LEADER_LIMIT.as_secs(),
                    leader.node
                )
            }
            _ => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    };
    let name = match group {
        Group::Brokers => crate::setup::BROKER_GROUP,
        Group::Names => "name servers",
    };
    Ok(Killed {
        group: name,
        node: leader.node,
        pid: process.pid,
        term: leader.group.term,
        in_flight,
        successor: successor.node,
        successor_term: successor.group.term,
        after: began.elapsed(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn killed(in_flight: usize, successor_term: u64) -> Killed {
        Killed {
            group: "broker-a",
            node: "b1".into(),
            pid: 1,
            term: 4,
            in_flight,
            successor: "b2".into(),
            successor_term,
            after: Duration::ZERO,
        }
    }

    #[test]
    fn a_kill_that_hit_nothing_is_no_proof() {
        assert_eq!(killed(3, 5).objection(), None);
        assert!(killed(0, 5).objection().expect("nothing in flight").contains("in flight"));
        assert!(killed(3, 4).objection().expect("not the leader").contains("did not lead"));
    }
}
