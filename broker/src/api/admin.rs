//! What nodes and administrators ask of a broker, on the API port. Changes are decided by the leader: any node
//! forwards them to it, once. `GetStatus` and `ReadDigest` are about the member that is asked.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mq_protocol::cluster::broker_admin_client::BrokerAdminClient;
use mq_protocol::cluster::broker_admin_server::BrokerAdmin;
use mq_protocol::cluster::{
    AdminResult, DeleteSubscriptionGroupRequest, DeleteTopicRequest, DigestMarkCommand, GetStatusRequest,
    GetStatusResponse, GroupStatus, ItemResult, ListSubscriptionGroupsRequest,
    ListSubscriptionGroupsResponse, ListTopicsRequest, ListTopicsResponse, MarkDigestRequest,
    MarkDigestResponse, PutSubscriptionGroupRequest, PutTopicRequest, QueueInfo, QueueOffsetsRequest,
    QueueOffsetsResponse, ReadDigestRequest, ReadDigestResponse, ReadQueueRequest, ReadQueueResponse,
    SubscriptionGroupCommand, SubscriptionGroupInfo, TopicCommand, TransferLeadershipRequest, item_result,
    subscription_group_command, topic_command,
};
use mq_protocol::{command, v2};
use mq_raft::{GroupStatusView, TransferError};
use mq_runtime::random::Random;
use mq_store::QueueId;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use super::admin_queues;
use super::grpc::context::CallContext;
use super::status;
use crate::error::BrokerError;
use crate::forward::{Answer, Forward, MESSAGE_BYTES_MAX, respond};
use crate::group::{BrokerGroup, Groups, encode_command};
use crate::produce::admit;
use crate::refusal::{CallError, Refusal};
use crate::registration::{member_status, topic_info};
use crate::state::{MAX_QUEUES, SubscriptionGroup};

/// A transfer of leadership may take this long.
const TRANSFER_MAX: Duration = Duration::from_secs(5);

/// The service. Cheap to clone.
#[derive(Clone)]
pub struct AdminApi {
    /// Name of the cluster.
    pub cluster: Arc<str>,
    /// Broker groups of this process.
    pub groups: Arc<Groups>,
    /// Way to other nodes.
    pub forward: Arc<Forward>,
    /// Source of digest marks.
    pub random: Random,
}

impl AdminApi {
    /// Serves a call at the leader of the named group.
    async fn at_leader<A, T, L, LF, R, RF>(
        &self,
        request: Request<T>,
        name: &str,
        local: L,
        remote: R,
    ) -> Response<A>
    where
        A: Answer,
        T: Clone,
        L: Fn(Arc<BrokerGroup>, T, mq_store::Term, Instant) -> LF,
        LF: Future<Output = Result<A, CallError>>,
        R: Fn(BrokerAdminClient<Channel>, Request<T>) -> RF,
        RF: Future<Output = Result<Response<A>, Status>>,
    {
        let refused = |error: CallError| Response::new(A::refused(status::of(&error)));
        let call = match CallContext::of(&request) {
            Ok(call) => call,
            Err(refusal) => return refused(refusal.into()),
        };
        if call.deadline <= Instant::now() {
            return respond(&call, None, Err(Refusal::Expired.into()));
        }
        let group = match self.group(name) {
            Ok(group) => group,
            Err(refusal) => return respond(&call, None, Err(refusal.into())),
        };
        let message = request.into_inner();
        let (message, answer_by) = (&message, call.answer_by());
        self.forward
            .at_leader(
                &call,
                group.leadership(),
                |term| local(Arc::clone(&group), message.clone(), term, answer_by),
                |channel: Channel, headers: MetadataMap| {
                    let client = BrokerAdminClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
                    remote(client, Request::from_parts(headers, tonic::Extensions::new(), message.clone()))
                },
            )
            .await
    }

    fn group(&self, name: &str) -> Result<Arc<BrokerGroup>, Refusal> {
        let found = if name.is_empty() { self.groups.only() } else { self.groups.named(name) };
        found.cloned().ok_or_else(|| Refusal::UnknownBrokerGroup(name.to_owned()))
    }
}

#[tonic::async_trait]
impl BrokerAdmin for AdminApi {
    async fn get_status(
        &self,
        request: Request<GetStatusRequest>,
    ) -> Result<Response<GetStatusResponse>, Status> {
        let asked = request.into_inner().group;
        let groups = self.groups.iter().filter(|group| asked.is_empty() || group.name == asked);
        Ok(Response::new(GetStatusResponse {
            cluster: self.cluster.to_string(),
            node: self.forward.node().to_owned(),
            groups: groups.map(|group| group_status(group.raft.status())).collect(),
        }))
    }

    async fn put_topic(&self, request: Request<PutTopicRequest>) -> Result<Response<AdminResult>, Status> {
        let group = request.get_ref().group.clone();
        let local = |group: Arc<BrokerGroup>, request: PutTopicRequest, term, deadline| async move {
            let command = topic_command(&request)?;
            Ok(changed(&group.put_topic(&command, term, deadline).await?, &command.name))
        };
        let remote =
            |mut client: BrokerAdminClient<Channel>, request| async move { client.put_topic(request).await };
        Ok(self.at_leader(request, &group, local, remote).await)
    }

    async fn delete_topic(
        &self,
        request: Request<DeleteTopicRequest>,
    ) -> Result<Response<AdminResult>, Status> {
        let group = request.get_ref().group.clone();
        let local = |group: Arc<BrokerGroup>, request: DeleteTopicRequest, term, deadline| async move {
            let command = TopicCommand {
                action: topic_command::Action::Delete as i32,
                namespace: request.namespace,
                name: request.name,
                ..TopicCommand::default()
            };
            Ok(changed(&group.put_topic(&command, term, deadline).await?, &command.name))
        };
        let remote = |mut client: BrokerAdminClient<Channel>, request| async move {
            client.delete_topic(request).await
        };
        Ok(self.at_leader(request, &group, local, remote).await)
    }

    async fn list_topics(
        &self,
        request: Request<ListTopicsRequest>,
    ) -> Result<Response<ListTopicsResponse>, Status> {
        let group = request.get_ref().group.clone();
        let local = |group: Arc<BrokerGroup>, request: ListTopicsRequest, _, _| async move {
            let view = &group.open()?.view;
            let mut topics = Vec::new();
            for topic in view.topics() {
                let mut info = topic_info(&topic);
                if request.with_queues {
                    let range = |queue| {
                        let id = QueueId { topic_id: topic.id, incarnation: topic.incarnation, queue };
                        let (min_offset, max_offset) = view.queue_range(id);
                        QueueInfo { queue, min_offset, max_offset }
                    };
                    info.queue_info = (0..topic.queues).map(range).collect();
                }
                topics.push(info);
            }
            Ok(ListTopicsResponse { result: Some(done(false)), topics })
        };
        let remote = |mut client: BrokerAdminClient<Channel>, request| async move {
            client.list_topics(request).await
        };
        Ok(self.at_leader(request, &group, local, remote).await)
    }

    async fn put_subscription_group(
        &self,
        request: Request<PutSubscriptionGroupRequest>,
    ) -> Result<Response<AdminResult>, Status> {
        let group = request.get_ref().group.clone();
        let local = |group: Arc<BrokerGroup>, request: PutSubscriptionGroupRequest, term, deadline| async move {
            let command = subscription_group_command(request)?;
            Ok(changed(&group.put_subscription_group(&command, term, deadline).await?, &command.name))
        };
        let remote = |mut client: BrokerAdminClient<Channel>, request| async move {
            client.put_subscription_group(request).await
        };
        Ok(self.at_leader(request, &group, local, remote).await)
    }

    async fn delete_subscription_group(
        &self,
        request: Request<DeleteSubscriptionGroupRequest>,
    ) -> Result<Response<AdminResult>, Status> {
        let group = request.get_ref().group.clone();
        let local = |group: Arc<BrokerGroup>, request: DeleteSubscriptionGroupRequest, term, deadline| async move {
            let command = SubscriptionGroupCommand {
                action: subscription_group_command::Action::Delete as i32,
                namespace: request.namespace,
                name: request.name,
                ..SubscriptionGroupCommand::default()
            };
            Ok(changed(&group.put_subscription_group(&command, term, deadline).await?, &command.name))
        };
        let remote = |mut client: BrokerAdminClient<Channel>, request| async move {
            client.delete_subscription_group(request).await
        };
        Ok(self.at_leader(request, &group, local, remote).await)
    }

    async fn list_subscription_groups(
        &self,
        request: Request<ListSubscriptionGroupsRequest>,
    ) -> Result<Response<ListSubscriptionGroupsResponse>, Status> {
        let group = request.get_ref().group.clone();
        let local = |group: Arc<BrokerGroup>, _: ListSubscriptionGroupsRequest, _, _| async move {
            let groups = group.open()?.view.groups().iter().map(|group| group_info(group)).collect();
            Ok(ListSubscriptionGroupsResponse { result: Some(done(false)), groups })
        };
        let remote = |mut client: BrokerAdminClient<Channel>, request| async move {
            client.list_subscription_groups(request).await
        };
        Ok(self.at_leader(request, &group, local, remote).await)
    }

    async fn mark_digest(
        &self,
        request: Request<MarkDigestRequest>,
    ) -> Result<Response<MarkDigestResponse>, Status> {
        let group = request.get_ref().group.clone();
        let mark = self.random.u64();
        let local = |group: Arc<BrokerGroup>, _: MarkDigestRequest, term, deadline| async move {
            let item = encode_command(command::DIGEST_MARK, &DigestMarkCommand { mark });
            let result = group.propose_one(item, "digest mark", term, deadline).await?;
            Ok(MarkDigestResponse { result: Some(done(false)), mark, index: result.index })
        };
        let remote = |mut client: BrokerAdminClient<Channel>, request| async move {
            client.mark_digest(request).await
        };
        Ok(self.at_leader(request, &group, local, remote).await)
    }

    async fn read_digest(
        &self,
        request: Request<ReadDigestRequest>,
    ) -> Result<Response<ReadDigestResponse>, Status> {
        let request = request.into_inner();
        let group = match self.group(&request.group) {
            Ok(group) => group,
            Err(refusal) => {
                return Ok(Response::new(ReadDigestResponse::refused(status::of(&refusal.into()))));
            }
        };
        let report = group.open().ok().and_then(|open| open.view.digest(request.mark));
        let Some(report) = report else {
            let code = v2::Code::NotFound as i32;
            let message = format!("mark {} is not computed here (yet)", request.mark);
            return Ok(Response::new(ReadDigestResponse::refused(v2::Status { code, message })));
        };
        Ok(Response::new(ReadDigestResponse {
            result: Some(done(false)),
            node_id: group.raft.node_id(),
            index: report.index,
            parts: report.parts,
        }))
    }

    async fn transfer_leadership(
        &self,
        request: Request<TransferLeadershipRequest>,
    ) -> Result<Response<AdminResult>, Status> {
        let group = request.get_ref().group.clone();
        let local = |group: Arc<BrokerGroup>, request: TransferLeadershipRequest, _, _| async move {
            let target = Some(request.target).filter(|target| *target != 0);
            match group.raft.transfer_leadership(target, Instant::now() + TRANSFER_MAX).await {
                Ok(()) => Ok(done(true)),
                Err(TransferError::NotLeader { leader }) => Err(BrokerError::NotLeader { leader }.into()),
                Err(TransferError::NoTarget(text)) => Err(Refusal::BadRequest(text).into()),
                Err(TransferError::Deadline) => {
                    Err(BrokerError::Unknown { reason: "no new leader in time" }.into())
                }
                Err(TransferError::Stopped) => Err(BrokerError::Stopped.into()),
            }
        };
        let remote = |mut client: BrokerAdminClient<Channel>, request| async move {
            client.transfer_leadership(request).await
        };
        Ok(self.at_leader(request, &group, local, remote).await)
    }

    async fn read_queue(
        &self,
        request: Request<ReadQueueRequest>,
    ) -> Result<Response<ReadQueueResponse>, Status> {
        if request.get_ref().local {
            let answer = match self.group(&request.get_ref().group) {
                Ok(group) => admin_queues::read_queue(&group, request.into_inner()).await,
                Err(refusal) => Err(refusal.into()),
            };
            return Ok(own_view(answer));
        }
        let group = request.get_ref().group.clone();
        let local = |group: Arc<BrokerGroup>, request: ReadQueueRequest, _, deadline| async move {
            group.barrier(deadline).await?;
            admin_queues::read_queue(&group, request).await
        };
        let remote =
            |mut client: BrokerAdminClient<Channel>, request| async move { client.read_queue(request).await };
        Ok(self.at_leader(request, &group, local, remote).await)
    }

    async fn queue_offsets(
        &self,
        request: Request<QueueOffsetsRequest>,
    ) -> Result<Response<QueueOffsetsResponse>, Status> {
        if request.get_ref().local {
            let answer = match self.group(&request.get_ref().group) {
                Ok(group) => admin_queues::queue_offsets(&group, request.into_inner()).await,
                Err(refusal) => Err(refusal.into()),
            };
            return Ok(own_view(answer));
        }
        let group = request.get_ref().group.clone();
        let local = |group: Arc<BrokerGroup>, request: QueueOffsetsRequest, _, deadline| async move {
            group.barrier(deadline).await?;
            admin_queues::queue_offsets(&group, request).await
        };
        let remote = |mut client: BrokerAdminClient<Channel>, request| async move {
            client.queue_offsets(request).await
        };
        Ok(self.at_leader(request, &group, local, remote).await)
    }
}

/// The answer of the member that was asked, about itself.
fn own_view<A: Answer>(answer: Result<A, CallError>) -> Response<A> {
    Response::new(answer.unwrap_or_else(|error| A::refused(status::of(&error))))
}

pub(super) fn done(changed: bool) -> AdminResult {
    AdminResult { code: v2::Code::Ok as i32, message: "OK".into(), changed }
}

fn changed(result: &ItemResult, name: &str) -> AdminResult {
    if result.code() == item_result::Code::Exists {
        let status = status::of(&BrokerError::Exists { name: name.to_owned() }.into());
        return AdminResult { code: status.code, message: status.message, changed: false };
    }
    done(result.topic.as_ref().is_none_or(|topic| topic.changed))
}

fn topic_command(request: &PutTopicRequest) -> Result<TopicCommand, Refusal> {
    let name = v2::Resource { resource_namespace: request.namespace.clone(), name: request.name.clone() };
    admit::topic_to_send_to(&name)?;
    if let Some(queues) = request.queues.filter(|queues| !(1..=MAX_QUEUES).contains(queues)) {
        return Err(Refusal::BadRequest(format!("{queues} queues; allowed are 1 to {MAX_QUEUES}")));
    }
    if let Some(permission) = request.permission.filter(|permission| !matches!(permission, 0 | 2 | 4 | 6)) {
        return Err(Refusal::BadRequest(format!("permission {permission}; allowed are 0, 2, 4 and 6")));
    }
    let known =
        |number: &u32| i32::try_from(*number).is_ok_and(|n| n > 0 && v2::MessageType::try_from(n).is_ok());
    if let Some(kind) = request.message_type.filter(|number| !known(number)) {
        return Err(Refusal::BadRequest(format!(
            "message type {kind}; allowed are 1 (NORMAL) to 6 (PRIORITY)"
        )));
    }
    let action =
        if request.create_only { topic_command::Action::Create } else { topic_command::Action::Upsert };
    Ok(TopicCommand {
        action: action as i32,
        namespace: request.namespace.clone(),
        name: request.name.clone(),
        queues: request.queues,
        permission: request.permission,
        message_type: request.message_type,
    })
}

fn subscription_group_command(
    request: PutSubscriptionGroupRequest,
) -> Result<SubscriptionGroupCommand, Refusal> {
    let name = v2::Resource { resource_namespace: request.namespace.clone(), name: request.name.clone() };
    admit::group_name(&name)?;
    if request.max_attempts == Some(0) {
        return Err(Refusal::BadRequest("max_attempts 0; at least one delivery is needed".into()));
    }
    let action = match request.create_only {
        true => subscription_group_command::Action::Create,
        false => subscription_group_command::Action::Upsert,
    };
    Ok(SubscriptionGroupCommand {
        action: action as i32,
        namespace: request.namespace,
        name: request.name,
        ordered: request.ordered,
        max_attempts: request.max_attempts,
        retry_pauses_ms: request.retry_pauses_ms,
        consume_enabled: request.consume_enabled,
    })
}

fn group_info(group: &SubscriptionGroup) -> SubscriptionGroupInfo {
    SubscriptionGroupInfo {
        namespace: group.namespace.clone(),
        name: group.name.clone(),
        id: group.id,
        ordered: group.ordered,
        max_attempts: group.max_attempts,
        retry_pauses_ms: group.retry_pauses_ms.clone(),
        consume_enabled: group.consume_enabled,
    }
}

fn group_status(status: GroupStatusView) -> GroupStatus {
    let index = |found: Option<mq_store::LogIndex>| found.map_or(0, |index| index.0);
    GroupStatus {
        group: status.group,
        group_uuid: status.group_uuid,
        node_id: status.node_id,
        state: status.state.as_str().to_owned(),
        waiting_for: if status.stopped_by.is_empty() { status.waiting_for } else { status.stopped_by },
        term: status.term.0,
        leader_id: status.leader.map_or(0, |leader| leader.id),
        last_index: index(status.last),
        committed_index: index(status.committed),
        applied_index: index(status.applied),
        flushed_index: index(status.flushed),
        log_start: status.log_start.0,
        log_end: status.log_end.0,
        members: status.members.iter().map(member_status).collect(),
        leader_ready: status.leader_ready,
    }
}
