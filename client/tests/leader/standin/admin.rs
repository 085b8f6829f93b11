//! Administration of a stand-in node: topics and groups in a list.

use mq_protocol::cluster;
use mq_protocol::cluster::broker_admin_server::BrokerAdmin;
use tonic::{Request, Response, Status};

use super::GROUP;
use super::services::Node;

type Answer<T> = Result<Response<T>, Status>;

fn result(code: i32, changed: bool) -> cluster::AdminResult {
    cluster::AdminResult { code, message: format!("code {code}"), changed }
}

impl Node {
    /// The code that the script has for this change.
    fn code(&self) -> i32 {
        self.state.lock().admin.pop_front().unwrap_or(20_000)
    }
}

#[tonic::async_trait]
impl BrokerAdmin for Node {
    async fn get_status(&self, _: Request<cluster::GetStatusRequest>) -> Answer<cluster::GetStatusResponse> {
        let mut state = self.state.lock();
        state.statuses_asked += 1;
        let member = |(place, address): (usize, &String)| cluster::MemberStatus {
            node_id: place as u64 + 1,
            node: format!("b{}", place + 1),
            api_address: address.clone(),
            client_address: address.clone(),
            ..Default::default()
        };
        let leads = state.leader == self.id;
        let group = cluster::GroupStatus {
            group: GROUP.to_owned(),
            node_id: self.id as u64 + 1,
            state: if leads { "leader" } else { "follower" }.to_owned(),
            term: state.term,
            leader_id: state.leader as u64 + 1,
            leader_ready: leads,
            members: state.addresses.iter().enumerate().map(member).collect(),
            ..Default::default()
        };
        Ok(Response::new(cluster::GetStatusResponse { groups: vec![group], ..Default::default() }))
    }

    async fn put_topic(&self, request: Request<cluster::PutTopicRequest>) -> Answer<cluster::AdminResult> {
        let code = self.code();
        let request = request.into_inner();
        let info = cluster::TopicInfo {
            name: request.name,
            queues: request.queues.unwrap_or(8),
            permission: request.permission.unwrap_or(6),
            message_type: request.message_type.unwrap_or(1),
            ..Default::default()
        };
        let mut state = self.state.lock();
        let new = code == 20_000 && !state.topics.iter().any(|topic| topic.name == info.name);
        if new {
            state.topics.push(info);
        }
        Ok(Response::new(result(code, new)))
    }

    async fn delete_topic(
        &self,
        request: Request<cluster::DeleteTopicRequest>,
    ) -> Answer<cluster::AdminResult> {
        let name = request.into_inner().name;
        let mut state = self.state.lock();
        let before = state.topics.len();
        state.topics.retain(|topic| topic.name != name);
        let found = state.topics.len() < before;
        Ok(Response::new(result(if found { 20_000 } else { 40_402 }, found)))
    }

    async fn list_topics(
        &self,
        _: Request<cluster::ListTopicsRequest>,
    ) -> Answer<cluster::ListTopicsResponse> {
        let topics = self.state.lock().topics.clone();
        Ok(Response::new(cluster::ListTopicsResponse { result: Some(result(20_000, false)), topics }))
    }

    async fn put_subscription_group(
        &self,
        request: Request<cluster::PutSubscriptionGroupRequest>,
    ) -> Answer<cluster::AdminResult> {
        let code = self.code();
        let request = request.into_inner();
        let info = cluster::SubscriptionGroupInfo {
            name: request.name,
            ordered: request.ordered.unwrap_or(false),
            max_attempts: request.max_attempts.unwrap_or(17),
            ..Default::default()
        };
        self.state.lock().groups.push(info);
        Ok(Response::new(result(code, true)))
    }

    async fn delete_subscription_group(
        &self,
        request: Request<cluster::DeleteSubscriptionGroupRequest>,
    ) -> Answer<cluster::AdminResult> {
        let name = request.into_inner().name;
        let mut state = self.state.lock();
        let before = state.groups.len();
        state.groups.retain(|group| group.name != name);
        let found = state.groups.len() < before;
        Ok(Response::new(result(if found { 20_000 } else { 40_403 }, found)))
    }

    async fn list_subscription_groups(
        &self,
        _: Request<cluster::ListSubscriptionGroupsRequest>,
    ) -> Answer<cluster::ListSubscriptionGroupsResponse> {
        let groups = self.state.lock().groups.clone();
        let result = Some(result(20_000, false));
        Ok(Response::new(cluster::ListSubscriptionGroupsResponse { result, groups }))
    }

    async fn mark_digest(
        &self,
        _: Request<cluster::MarkDigestRequest>,
    ) -> Answer<cluster::MarkDigestResponse> {
        let result = Some(result(self.code(), true));
        Ok(Response::new(cluster::MarkDigestResponse { result, mark: 5, index: 5 }))
    }

    async fn read_digest(
        &self,
        request: Request<cluster::ReadDigestRequest>,
    ) -> Answer<cluster::ReadDigestResponse> {
        let known = request.into_inner().mark == 5;
        let own = u8::from(self.state.lock().differs == Some(self.id));
        let part = |name: &str, byte: u8| cluster::DigestPart {
            name: name.to_owned(),
            count: 1,
            digest: vec![byte; 32].into(),
        };
        Ok(Response::new(cluster::ReadDigestResponse {
            result: Some(result(if known { 20_000 } else { 40_400 }, false)),
            node_id: self.id as u64 + 1,
            index: 5,
            parts: vec![part("frames", 7), part("queue 1-0/0", own)],
        }))
    }

    async fn read_queue(
        &self,
        request: Request<cluster::ReadQueueRequest>,
    ) -> Answer<cluster::ReadQueueResponse> {
        let offset = request.into_inner().from;
        let record = cluster::QueueRecord { offset, body: "seven".into(), ..Default::default() };
        Ok(Response::new(cluster::ReadQueueResponse {
            result: Some(result(self.code(), false)),
            min_offset: 2,
            max_offset: 8,
            records: (2..8).contains(&offset).then_some(record).into_iter().collect(),
            ..Default::default()
        }))
    }

    async fn queue_offsets(
        &self,
        request: Request<cluster::QueueOffsetsRequest>,
    ) -> Answer<cluster::QueueOffsetsResponse> {
        let name = request.into_inner().topic;
        let queue = cluster::QueueInfo { queue: 0, min_offset: 2, max_offset: 8 };
        let topic = cluster::TopicInfo { name, queues: 1, queue_info: vec![queue], ..Default::default() };
        Ok(Response::new(cluster::QueueOffsetsResponse {
            result: Some(result(self.code(), false)),
            topic: Some(topic),
            last_store_times: vec![77],
            ..Default::default()
        }))
    }

    async fn transfer_leadership(
        &self,
        request: Request<cluster::TransferLeadershipRequest>,
    ) -> Answer<cluster::AdminResult> {
        let code = self.code();
        let mut state = self.state.lock();
        if code == 20_000 {
            let target = usize::try_from(request.into_inner().target).unwrap_or(0);
            state.leader = target.saturating_sub(1);
            state.term += 1;
        }
        Ok(Response::new(result(code, true)))
    }
}
