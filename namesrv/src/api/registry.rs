//! The registry: what brokers and administrators ask of a name server.

use std::sync::Arc;
use std::time::Instant;

use mq_protocol::cluster::registry_client::RegistryClient;
use mq_protocol::cluster::registry_server::Registry;
use mq_protocol::cluster::{
    GetClusterRequest, GetClusterResponse, GetNameStatusRequest, GetNameStatusResponse, GetTopicRouteRequest,
    GetTopicRouteResponse, GroupStatus, ListTopicRoutesRequest, ListTopicRoutesResponse, MarkDigestRequest,
    MarkDigestResponse, MemberStatus, NameDigestMark, NameResult, ReadDigestRequest, ReadDigestResponse,
    ReportRequest, ReportResponse,
};
use mq_protocol::{headers, names};
use mq_raft::{GroupStatusView, MemberView};
use mq_store::LogIndex;
use tonic::metadata::MetadataValue;
use tonic::{Request, Response, Status};

use super::call::Call;
use super::report::{self, forwarded_answer};
use super::status;
use crate::command::Command;
use crate::error::NameError;
use crate::node::{Leader, Node};
use crate::route_table::{key_of_text, resource};

/// Most routes in one answer.
const ROUTES_MAX: usize = 1_000;

/// The service.
pub(crate) struct RegistryApi {
    pub node: Arc<Node>,
}

/// A request on its way to the leader: marked, and with the time that is left.
pub(super) fn forwarded<T>(node: &Node, call: &Call, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(call.left());
    let value =
        MetadataValue::try_from(node.name.as_str()).unwrap_or(MetadataValue::from_static("name-server"));
    request.metadata_mut().insert(headers::FORWARDED, value);
    request
}

impl RegistryApi {
    /// Routes are read behind a barrier, or from a state whose age is bounded.
    async fn readable(&self, linearizable: bool, until: Instant) -> Result<(), NameError> {
        if linearizable { self.node.barrier(until).await } else { self.node.fresh() }
    }

    async fn topic_route(
        &self,
        call: Result<Call, NameError>,
        request: GetTopicRouteRequest,
    ) -> Result<GetTopicRouteResponse, NameError> {
        let GetTopicRouteRequest { namespace, name, linearizable } = request;
        let call = call?;
        names::namespace(&namespace)?;
        names::topic(&name)?;
        self.readable(linearizable, call.answer_by).await?;
        let shown = self.node.state.read();
        let route = shown.table.route(&namespace, &name);
        let result = match &route {
            Some(_) => Ok(false),
            None => Err(NameError::UnknownTopic(resource(&namespace, &name))),
        };
        Ok(GetTopicRouteResponse { result: Some(status::result(&result)), stamp: Some(shown.stamp()), route })
    }

    async fn mark(&self, call: Result<Call, NameError>) -> Result<MarkDigestResponse, NameError> {
        let call = call?;
        match self.node.leader(&call).await? {
            Leader::Here(term) => {
                let mark = self.node.random.u64();
                let command = Command::DigestMark(NameDigestMark { mark });
                let applied: NameResult = self.node.propose(term, &command, call.answer_by).await?;
                Ok(MarkDigestResponse { result: Some(status::result(&Ok(true))), mark, index: applied.index })
            }
            Leader::There(channel) => {
                let mut client = RegistryClient::new(channel);
                let request = forwarded(&self.node, &call, MarkDigestRequest::default());
                forwarded_answer(&call, client.mark_name_digest(request)).await
            }
        }
    }
}

#[tonic::async_trait]
impl Registry for RegistryApi {
    async fn report(&self, request: Request<ReportRequest>) -> Result<Response<ReportResponse>, Status> {
        let answer = match Call::of(request.metadata()) {
            Ok(call) => report::report(&self.node, &call, request.into_inner()).await,
            Err(error) => {
                ReportResponse { result: Some(status::result(&Err(error))), ..ReportResponse::default() }
            }
        };
        self.node.metrics.reported(answer.result.as_ref().map_or(0, |result| result.code));
        Ok(Response::new(answer))
    }

    async fn get_cluster(
        &self,
        _request: Request<GetClusterRequest>,
    ) -> Result<Response<GetClusterResponse>, Status> {
        let fresh = self.node.fresh().map(|()| false);
        let shown = self.node.state.read();
        let mut groups = Vec::new();
        if fresh.is_ok() {
            let leads = self.node.raft.leadership().borrow().me;
            let now = self.node.now_ms();
            groups.extend(shown.table.groups().map(|group| {
                let mut info = group.info(&self.node.cluster);
                info.heard_ms_ago =
                    leads.then(|| self.node.liveness.silent_ms(&info.broker_group, now)).flatten();
                info
            }));
        }
        Ok(Response::new(GetClusterResponse {
            result: Some(status::result(&fresh)),
            stamp: Some(shown.stamp()),
            cluster: self.node.cluster.clone(),
            groups,
            name_servers: self.node.name_servers(),
        }))
    }

    async fn get_topic_route(
        &self,
        request: Request<GetTopicRouteRequest>,
    ) -> Result<Response<GetTopicRouteResponse>, Status> {
        let call = Call::of(request.metadata());
        let answer = self.topic_route(call, request.into_inner()).await;
        let answer = answer.unwrap_or_else(|error| GetTopicRouteResponse {
            result: Some(status::result(&Err(error))),
            stamp: Some(self.node.state.read().stamp()),
            route: None,
        });
        self.node.metrics.routed(answer.result.as_ref().map_or(0, |result| result.code));
        Ok(Response::new(answer))
    }

    async fn list_topic_routes(
        &self,
        request: Request<ListTopicRoutesRequest>,
    ) -> Result<Response<ListTopicRoutesResponse>, Status> {
        let fresh = self.node.fresh().map(|()| false);
        let listed = match fresh {
            Ok(_) => list_routes(&self.node, &request.into_inner()),
            Err(_) => ListTopicRoutesResponse::default(),
        };
        let stamp = listed.stamp.or_else(|| Some(self.node.state.read().stamp()));
        Ok(Response::new(ListTopicRoutesResponse { result: Some(status::result(&fresh)), stamp, ..listed }))
    }

    async fn get_name_status(
        &self,
        _request: Request<GetNameStatusRequest>,
    ) -> Result<Response<GetNameStatusResponse>, Status> {
        Ok(Response::new(GetNameStatusResponse {
            result: Some(status::result(&Ok(false))),
            node: self.node.name.clone(),
            group: Some(group_status(self.node.raft.status())),
        }))
    }

    async fn mark_name_digest(
        &self,
        request: Request<MarkDigestRequest>,
    ) -> Result<Response<MarkDigestResponse>, Status> {
        let answer = self.mark(Call::of(request.metadata())).await;
        Ok(Response::new(answer.unwrap_or_else(|error| MarkDigestResponse {
            result: Some(status::result(&Err(error))),
            ..MarkDigestResponse::default()
        })))
    }

    async fn read_name_digest(
        &self,
        request: Request<ReadDigestRequest>,
    ) -> Result<Response<ReadDigestResponse>, Status> {
        let mark = request.into_inner().mark;
        let node_id = self.node.raft.node_id();
        Ok(Response::new(match self.node.state.digests().get(mark) {
            Some(digest) => ReadDigestResponse {
                result: Some(status::result(&Ok(false))),
                node_id,
                index: digest.index,
                parts: digest.parts,
            },
            None => ReadDigestResponse {
                result: Some(status::result(&Err(NameError::NotFound(format!(
                    "no digest of mark {mark} here"
                ))))),
                node_id,
                ..ReadDigestResponse::default()
            },
        }))
    }
}

/// One page: of what changed, where that is known, else of everything.
fn list_routes(node: &Node, request: &ListTopicRoutesRequest) -> ListTopicRoutesResponse {
    let ListTopicRoutesRequest { start_after, limit, changed_after } = request;
    let limit = if *limit == 0 { ROUTES_MAX } else { ROUTES_MAX.min(*limit as usize) };
    let shown = node.state.read();
    let changed = (*changed_after > 0).then(|| shown.changes.behind(*changed_after)).flatten();
    let partial = changed.is_some();
    let (routes, more) = match changed {
        None => shown.table.routes(start_after, limit),
        Some(keys) => {
            let start_after = key_of_text(start_after);
            let mut keys = keys.into_iter().filter(|key| *key > start_after.as_str());
            let routes = shown.table.routes_of(keys.by_ref().take(limit)).collect();
            (routes, keys.next().is_some())
        }
    };
    let routes_index = shown.changes.newest();
    ListTopicRoutesResponse { result: None, stamp: Some(shown.stamp()), routes, more, routes_index, partial }
}

fn group_status(view: GroupStatusView) -> GroupStatus {
    let index = |index: Option<LogIndex>| index.map_or(0, |index| index.0);
    let waiting_for = if view.stopped_by.is_empty() { view.waiting_for } else { view.stopped_by };
    GroupStatus {
        group: view.group,
        group_uuid: view.group_uuid,
        node_id: view.node_id,
        state: view.state.as_str().to_owned(),
        waiting_for,
        term: view.term.0,
        leader_id: view.leader.map_or(0, |leader| leader.id),
        last_index: index(view.last),
        committed_index: index(view.committed),
        applied_index: index(view.applied),
        flushed_index: index(view.flushed),
        log_start: view.log_start.0,
        log_end: view.log_end.0,
        members: view.members.into_iter().map(member_status).collect(),
        leader_ready: view.leader_ready,
    }
}

fn member_status(member: MemberView) -> MemberStatus {
    MemberStatus {
        node_id: member.id,
        raft_address: member.raft_address,
        api_address: member.api_address,
        client_address: member.client_address,
        role: member.role.as_str().to_owned(),
        voter: member.voter,
        matched_index: member.matched.map(|index| index.0),
        node: member.node,
    }
}
