//! Registration of broker groups: checked here, decided by the leader. A sign of life changes soft state only; what is
//! news goes through the log.

use mq_protocol::cluster::name_result::Outcome;
use mq_protocol::cluster::registry_client::RegistryClient;
use mq_protocol::cluster::{
    FullReport, IncrementReport, MemberStatus, NameFull, NameIncrement, NameMember, NameReport, NameResult,
    NameTopic, ReportRequest, ReportResponse, Stamp, TopicInfo,
};
use mq_protocol::names;
use mq_store::Term;
use tonic::transport::Channel;

use super::call::Call;
use super::registry::forwarded;
use super::status;
use crate::command::Command;
use crate::error::NameError;
use crate::node::{Leader, Node};
use crate::route_table::FULL_PARTS_MAX;

/// Longest name of a broker group, bytes.
const GROUP_NAME_MAX: usize = 127;
/// Most members of a broker group.
const MEMBERS_MAX: usize = 64;

/// Answers a report at the leader, here or there.
pub(super) async fn report(node: &Node, call: &Call, request: ReportRequest) -> ReportResponse {
    let outcome = match check(&node.cluster, &request) {
        Ok(()) => decide(node, call, request).await,
        Err(error) => Err(error),
    };
    outcome.unwrap_or_else(|error| ReportResponse {
        result: Some(status::result(&Err(error))),
        stamp: Some(node.state.read().stamp()),
        ..ReportResponse::default()
    })
}

async fn decide(node: &Node, call: &Call, request: ReportRequest) -> Result<ReportResponse, NameError> {
    match node.leader(call).await? {
        Leader::Here(term) => decide_here(node, call, term, into_command(request)).await,
        Leader::There(channel) => pass_on(node, call, channel, request).await,
    }
}

async fn pass_on(
    node: &Node,
    call: &Call,
    channel: Channel,
    request: ReportRequest,
) -> Result<ReportResponse, NameError> {
    let mut client = RegistryClient::new(channel);
    let request = forwarded(node, call, request);
    forwarded_answer(call, client.report(request)).await
}

/// Waits for the answer of the leader. A call that never left this node changed nothing.
pub(super) async fn forwarded_answer<T>(
    call: &Call,
    answer: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, NameError> {
    match tokio::time::timeout(call.left(), answer).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) if never_left(&status) => Err(NameError::NoLeader),
        Ok(Err(_)) => Err(NameError::Unknown("the connection to the leader failed")),
        Err(_) => Err(NameError::Unknown("the leader did not answer in time")),
    }
}

fn never_left(status: &tonic::Status) -> bool {
    let first = std::error::Error::source(status);
    std::iter::successors(first, |error| error.source()).any(|error| error.is::<tonic::ConnectError>())
}

/// What this node knows of the group of a report.
enum Known {
    /// Nothing new: a sign of life, or a report that is overtaken.
    Answer(Outcome),
    /// Has to go through the log.
    News,
}

async fn decide_here(
    node: &Node,
    call: &Call,
    term: Term,
    report: NameReport,
) -> Result<ReportResponse, NameError> {
    node.liveness.lead(term, node.now_ms());
    let group = report.broker_group.clone();
    let outcome = match look(node, &report) {
        Known::Answer(outcome) => {
            // A leader that was replaced without noticing must not keep a broker group from reporting elsewhere.
            node.still_leads(call).await?;
            outcome
        }
        Known::News => {
            let applied: NameResult = node.propose(term, &Command::Report(report), call.answer_by).await?;
            applied.outcome()
        }
    };
    if matches!(outcome, Outcome::Applied | Outcome::Unchanged | Outcome::Staged | Outcome::Resync) {
        node.liveness.heard(&group, node.now_ms());
    }
    let name_servers = node.name_servers();
    let shown = node.state.read();
    let answer =
        answer(outcome, shown.table.group(&group).map(|group| group.record()), shown.stamp(), &group);
    Ok(ReportResponse { name_servers, ..answer })
}

/// The leader's own state shows every registration that was confirmed, so it decides what needs no entry.
fn look(node: &Node, report: &NameReport) -> Known {
    let shown = node.state.read();
    let Some(group) = shown.table.group(&report.broker_group) else { return Known::News };
    match group.fence(report) {
        Some(refusal) => Known::Answer(refusal),
        None if group.is_keep_alive(report) => Known::Answer(Outcome::Unchanged),
        None => Known::News,
    }
}

fn answer(
    outcome: Outcome,
    record: Option<&mq_protocol::cluster::NameGroupRecord>,
    stamp: Stamp,
    group: &str,
) -> ReportResponse {
    let result = match outcome {
        Outcome::Applied | Outcome::Staged => Ok(true),
        Outcome::Unchanged | Outcome::Stale | Outcome::Resync => Ok(false),
        Outcome::OtherUuid => {
            let owner = record.map_or("?", |record| record.group_uuid.as_str());
            Err(NameError::Refused(format!("the name {group} belongs to the broker group with UUID {owner}")))
        }
        Outcome::Unknown | Outcome::Unspecified => {
            Err(NameError::BadRequest(format!("a report of {group} that makes no sense")))
        }
    };
    let staged = outcome == Outcome::Staged;
    let has_view = record.is_some_and(|record| record.has_view);
    ReportResponse {
        resync: result.is_ok()
            && outcome != Outcome::Stale
            && !staged
            && (outcome == Outcome::Resync || !has_view),
        stale: outcome == Outcome::Stale,
        stored_index: record.map_or(0, |record| record.view_index),
        stamp: Some(stamp),
        result: Some(status::result(&result)),
        name_servers: Vec::new(),
    }
}

/// Refuses what no broker of this cluster sends.
fn check(cluster: &str, request: &ReportRequest) -> Result<(), NameError> {
    let bad = |text: String| Err(NameError::BadRequest(text));
    let ReportRequest { broker_group, group_uuid, members, full, increment, .. } = request;
    if request.cluster != cluster {
        let text = format!("this is cluster {cluster}, the report is of cluster {}", request.cluster);
        return Err(NameError::Refused(text));
    }
    let sane = |name: &str| name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'%' && byte != b'/');
    if broker_group.is_empty() || broker_group.len() > GROUP_NAME_MAX || !sane(broker_group) {
        return bad(format!("{broker_group:?} is no name of a broker group"));
    }
    if group_uuid.is_empty() || group_uuid.len() > 64 {
        return bad(format!("{group_uuid:?} is no UUID of a broker group"));
    }
    if members.len() > MEMBERS_MAX {
        return bad(format!("{} members, the limit is {MEMBERS_MAX}", members.len()));
    }
    if full.is_some() && increment.is_some() {
        return bad("a report holds a full view or an increment, not both".to_owned());
    }
    if let Some(FullReport { part, of, .. }) = full
        && (part >= of || *of > FULL_PARTS_MAX)
    {
        return bad(format!("part {part} of {of}, the limit is {FULL_PARTS_MAX}"));
    }
    if let Some(IncrementReport { from, to, .. }) = increment
        && from > to
    {
        return bad(format!("an increment from {from} to {to}"));
    }
    let full = full.iter().flat_map(|full| &full.topics);
    for topic in full.chain(increment.iter().flat_map(|increment| &increment.changed)) {
        names::namespace(&topic.namespace)?;
        names::topic(&topic.name)?;
    }
    Ok(())
}

fn into_command(request: ReportRequest) -> NameReport {
    let mut members: Vec<NameMember> = request.members.into_iter().map(member).collect();
    members.sort_by_key(|member| member.node_id);
    let topics = |topics: Vec<TopicInfo>| topics.into_iter().map(topic).collect();
    NameReport {
        broker_group: request.broker_group,
        group_uuid: request.group_uuid,
        term: request.term,
        applied_index: request.applied_index,
        leader_id: request.leader_id,
        members,
        full: request.full.map(|full| {
            let FullReport { to, part, of, topics: infos } = full;
            NameFull { to, part, of, topics: topics(infos) }
        }),
        increment: request.increment.map(|increment| {
            let IncrementReport { from, to, changed, removed } = increment;
            NameIncrement { from, to, changed: topics(changed), removed }
        }),
    }
}

fn member(status: MemberStatus) -> NameMember {
    NameMember {
        node_id: status.node_id,
        node: status.node,
        raft_address: status.raft_address,
        api_address: status.api_address,
        client_address: status.client_address,
        role: status.role,
        voter: status.voter,
    }
}

fn topic(info: TopicInfo) -> NameTopic {
    NameTopic {
        namespace: info.namespace,
        name: info.name,
        id: info.id,
        incarnation: info.incarnation,
        queues: info.queues,
        permission: info.permission,
        message_type: info.message_type,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> ReportRequest {
        ReportRequest {
            cluster: "prod".into(),
            broker_group: "broker-a".into(),
            group_uuid: "uuid".into(),
            term: 1,
            ..ReportRequest::default()
        }
    }

    fn refused(change: impl FnOnce(&mut ReportRequest)) -> i32 {
        let mut request = request();
        change(&mut request);
        status::code(&check("prod", &request).expect_err("refused")) as i32
    }

    #[test]
    fn reports_that_make_no_sense_are_refused_before_the_log() {
        check("prod", &request()).expect("a keep-alive");
        assert_eq!(refused(|r| r.cluster = "test".into()), 40_300);
        assert_eq!(refused(|r| r.broker_group.clear()), 40_000);
        assert_eq!(refused(|r| r.broker_group = "a\0b".into()), 40_000);
        assert_eq!(refused(|r| r.group_uuid.clear()), 40_000);
        assert_eq!(refused(|r| r.members = vec![MemberStatus::default(); 65]), 40_000);
        assert_eq!(
            refused(|r| r.full = Some(FullReport { part: 1, of: 1, ..FullReport::default() })),
            40_000
        );
        let backwards = IncrementReport { from: 2, to: 1, ..IncrementReport::default() };
        assert_eq!(refused(|r| r.increment = Some(backwards)), 40_000);
        let topic = TopicInfo { name: "no spaces".into(), ..TopicInfo::default() };
        let full = FullReport { part: 0, of: 1, topics: vec![topic], ..FullReport::default() };
        assert_eq!(refused(|r| r.full = Some(full)), 40_002);
    }

    #[test]
    fn a_group_without_a_view_is_asked_for_one() {
        let record = |has_view| mq_protocol::cluster::NameGroupRecord {
            has_view,
            view_index: 7,
            ..Default::default()
        };
        let resync =
            |outcome, has_view| answer(outcome, Some(&record(has_view)), Stamp::default(), "g").resync;
        assert!(resync(Outcome::Unchanged, false));
        assert!(resync(Outcome::Applied, false));
        assert!(resync(Outcome::Resync, true));
        assert!(!resync(Outcome::Staged, false), "more parts come");
        assert!(!resync(Outcome::Stale, false), "its leader is another one");
        assert!(!resync(Outcome::Applied, true));
        let stale = answer(Outcome::Stale, Some(&record(true)), Stamp::default(), "g");
        assert!(stale.stale && stale.stored_index == 7);
        let other = answer(Outcome::OtherUuid, Some(&record(true)), Stamp::default(), "g");
        assert_eq!(other.result.map(|result| result.code), Some(40_300));
    }
}
