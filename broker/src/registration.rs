//! The leader of a broker group reports itself and its topics to the name servers (D14): everything after an
//! election and when asked to, else what changed, else a sign of life each second. A report that a newer one
//! overtook changes nothing there; reporting goes on when this node leads again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mq_protocol::cluster::registry_client::RegistryClient;
use mq_protocol::cluster::{
    FullReport, IncrementReport, MemberStatus, ReportRequest, ReportResponse, TopicInfo, TopicName,
};
use mq_protocol::v2;
use mq_raft::{GroupStatusView, MemberView};
use mq_store::Term;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use crate::group::BrokerGroup;
use crate::routes::NameServers;
use crate::state::{ChangedTopics, StateView, Topic};

const KEEP_ALIVE_EVERY: Duration = Duration::from_secs(1);
/// After a failed report.
const RETRY_AFTER: Duration = Duration::from_millis(200);
/// All name servers together have this long for one report.
const REPORT_MAX: Duration = Duration::from_secs(3);
/// Topics in one part of a full report.
const PART: usize = 1_000;

/// What the name servers were told, in this term.
#[derive(Debug, Default)]
struct Told {
    term: Term,
    /// Log index of the view they have; `None` = nothing of this term yet.
    index: Option<u64>,
}

/// Outcome of one round.
#[derive(Debug, PartialEq, Eq)]
enum Round {
    Done,
    /// Nobody answered, or with an error: again soon.
    Failed,
    /// Somebody with a newer term reported: wait for our own next one.
    Overtaken,
}

/// Reports until stopped.
pub async fn run(
    cluster: String,
    group: Arc<BrokerGroup>,
    servers: Arc<NameServers>,
    stop: CancellationToken,
) {
    if servers.is_empty() {
        return;
    }
    let reporter = Reporter { cluster, group, servers };
    tokio::select! {
        () = stop.cancelled() => {}
        () = reporter.run() => {}
    }
}

struct Reporter {
    cluster: String,
    group: Arc<BrokerGroup>,
    servers: Arc<NameServers>,
}

impl Reporter {
    async fn run(&self) {
        let mut leadership = self.group.leadership();
        let mut told = Told::default();
        loop {
            let Ok(now) = leadership.wait_for(|now| now.me && now.ready).await.map(|now| now.clone()) else {
                return;
            };
            let Ok(open) = self.group.open() else {
                tokio::time::sleep(RETRY_AFTER).await;
                continue;
            };
            if told.term != now.term {
                told = Told { term: now.term, index: None };
            }
            let view = open.view.clone();
            let mut changed = view.topics_changed();
            changed.borrow_and_update();
            let pause = match self.round(&mut told, &view).await {
                Round::Done => KEEP_ALIVE_EVERY,
                Round::Failed => RETRY_AFTER,
                Round::Overtaken => {
                    tracing::warn!(group = self.group.name, term = %now.term, "a newer leader is registered");
                    // Not for ever: should the newer one never appear here, this node asks again.
                    let newer = leadership.wait_for(|seen| seen.term != now.term);
                    let _ = tokio::time::timeout(KEEP_ALIVE_EVERY * 5, newer).await;
                    continue;
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = leadership.changed() => {}
                _ = changed.changed(), if pause == KEEP_ALIVE_EVERY => {}
            }
        }
    }

    /// Tells the name servers what they do not have yet.
    async fn round(&self, told: &mut Told, view: &StateView) -> Round {
        let status = self.group.raft.status();
        let present = view.topics_index();
        let base = |index: u64| self.base(&status, told.term, view.applied().index.0.max(index));
        let changed = told
            .index
            .filter(|told| *told != present)
            .map(|told| (told, view.topics_changed_behind(told).filter(fits)));
        let (index, outcome) = match (told.index, changed) {
            (Some(index), None) => (index, self.report(base(index)).await),
            (_, Some((from, Some(changed)))) => {
                let index = changed.index;
                let increment = increment(from, changed);
                (index, self.report(ReportRequest { increment: Some(increment), ..base(index) }).await)
            }
            (None, _) | (_, Some((_, None))) => {
                let (index, topics) = view.topics_with_index();
                (index, self.full(&|| base(index), index, &topics).await)
            }
        };
        match outcome {
            None => Round::Failed,
            Some(answer) if answer.stale => Round::Overtaken,
            Some(answer) if answer.resync => {
                told.index = None;
                Round::Failed
            }
            Some(answer)
                if answer.result.as_ref().is_some_and(|result| result.code != v2::Code::Ok as i32) =>
            {
                let text = answer.result.map(|result| result.message).unwrap_or_default();
                tracing::warn!(group = self.group.name, text, "the name servers refused a report");
                Round::Failed
            }
            Some(_) => {
                told.index = Some(index);
                Round::Done
            }
        }
    }

    fn base(&self, status: &GroupStatusView, term: Term, applied_index: u64) -> ReportRequest {
        ReportRequest {
            cluster: self.cluster.clone(),
            broker_group: self.group.name.clone(),
            group_uuid: status.group_uuid.clone(),
            term: term.0,
            applied_index,
            leader_id: status.node_id,
            members: status.members.iter().map(member_status).collect(),
            full: None,
            increment: None,
        }
    }

    async fn full(
        &self,
        base: &impl Fn() -> ReportRequest,
        to: u64,
        topics: &[Arc<Topic>],
    ) -> Option<ReportResponse> {
        let infos: Vec<_> = topics.iter().map(|topic| topic_info(topic)).collect();
        let of = u32::try_from(infos.len().div_ceil(PART).max(1)).unwrap_or(u32::MAX);
        let mut answer = None;
        for part in 0..of {
            let from = part as usize * PART;
            let topics = infos[from..infos.len().min(from + PART)].to_vec();
            let full = FullReport { to, part, of, topics };
            let part_answer = self.report(ReportRequest { full: Some(full), ..base() }).await?;
            let go_on = !part_answer.stale
                && part_answer.result.as_ref().is_none_or(|result| result.code == v2::Code::Ok as i32);
            answer = Some(part_answer);
            if !go_on {
                break;
            }
        }
        answer
    }

    async fn report(&self, request: ReportRequest) -> Option<ReportResponse> {
        let send = |mut client: RegistryClient<Channel>| {
            let request = request.clone();
            async move { client.report(request).await }
        };
        self.servers.ask(Instant::now() + REPORT_MAX, send).await
    }
}

/// More than that goes in the parts of a full report.
fn fits(changed: &ChangedTopics) -> bool {
    changed.present.len() + changed.gone.len() <= PART
}

fn increment(from: u64, changed: ChangedTopics) -> IncrementReport {
    let ChangedTopics { index: to, present, gone } = changed;
    let removed = gone.into_iter().map(|(namespace, name)| TopicName { namespace, name }).collect();
    IncrementReport { from, to, changed: present.iter().map(|topic| topic_info(topic)).collect(), removed }
}

/// A topic as reports and listings show it, without its queues' ranges.
pub fn topic_info(topic: &Topic) -> TopicInfo {
    TopicInfo {
        namespace: topic.namespace.clone(),
        name: topic.name.clone(),
        id: topic.id,
        incarnation: topic.incarnation,
        queues: topic.queues,
        permission: topic.permission,
        message_type: topic.message_type,
        queue_info: Vec::new(),
    }
}

/// A member as reports and status answers show it.
pub fn member_status(member: &MemberView) -> MemberStatus {
    MemberStatus {
        node_id: member.id,
        raft_address: member.raft_address.clone(),
        api_address: member.api_address.clone(),
        client_address: member.client_address.clone(),
        role: member.role.as_str().to_owned(),
        voter: member.voter,
        matched_index: member.matched.map(|index| index.0),
        node: member.node.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_increment_names_what_there_is_and_what_is_gone() {
        let topic = Arc::new(Topic {
            namespace: "ns".to_owned(),
            name: "wider".to_owned(),
            id: 1,
            incarnation: 1,
            queues: 16,
            permission: 6,
            message_type: 1,
        });
        let gone = vec![("ns".to_owned(), "gone".to_owned())];
        let made = increment(5, ChangedTopics { index: 9, present: vec![topic], gone });
        assert_eq!((made.from, made.to), (5, 9));
        assert_eq!(
            made.changed.iter().map(|topic| (topic.name.as_str(), topic.queues)).collect::<Vec<_>>(),
            [("wider", 16)]
        );
        assert_eq!(made.removed.iter().map(|topic| topic.name.as_str()).collect::<Vec<_>>(), ["gone"]);
    }
}
