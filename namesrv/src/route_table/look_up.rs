//! Questions to the route table.

use mq_protocol::cluster::{
    BrokerGroupInfo, MemberStatus, NameMember, NameTopic, TopicInfo, TopicRoute, TopicRouteGroup,
};

use super::{Group, RouteTable, key_of_text, topic_key};

impl RouteTable {
    /// A broker group by name.
    #[must_use]
    pub fn group(&self, name: &str) -> Option<&Group> {
        self.groups.get(name)
    }

    /// All broker groups by name.
    pub fn groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.values()
    }

    /// Number of topics, each counted once.
    #[must_use]
    pub fn topic_count(&self) -> usize {
        self.holders.len()
    }

    /// Routes of the topics with these keys, in their order; one that is gone is a route without groups.
    pub fn routes_of<'a>(&'a self, keys: impl Iterator<Item = &'a str>) -> impl Iterator<Item = TopicRoute> {
        keys.map(|key| {
            self.route_of(key).unwrap_or_else(|| {
                let (namespace, name) = key.split_once('\0').unwrap_or(("", key));
                let topic =
                    TopicInfo { namespace: namespace.into(), name: name.into(), ..TopicInfo::default() };
                TopicRoute { topic: Some(topic), groups: Vec::new() }
            })
        })
    }

    /// Where a topic is. Groups that are lost are left out as long as another one holds the topic.
    #[must_use]
    pub fn route(&self, namespace: &str, name: &str) -> Option<TopicRoute> {
        self.route_of(&topic_key(namespace, name))
    }

    /// Routes of the topics behind `start_after`, the text `namespace%name` of one, in the order of namespace and name;
    /// whether there are more.
    #[must_use]
    pub fn routes(&self, start_after: &str, limit: usize) -> (Vec<TopicRoute>, bool) {
        let start_after = key_of_text(start_after);
        let after = (std::ops::Bound::Excluded(start_after.as_str()), std::ops::Bound::Unbounded);
        let mut keys = self.holders.range::<str, _>(after).map(|(key, _)| key);
        let routes = keys.by_ref().take(limit).filter_map(|key| self.route_of(key)).collect();
        (routes, keys.next().is_some())
    }

    fn route_of(&self, key: &str) -> Option<TopicRoute> {
        let holders: Vec<(&Group, &NameTopic)> = self
            .holders
            .get(key)?
            .iter()
            .filter_map(|name| self.groups.get(name))
            .filter_map(|group| group.topics.get(key).map(|topic| (group, topic)))
            .collect();
        let all_lost = holders.iter().all(|(group, _)| group.record.lost);
        let topic = holders.first().map(|(_, topic)| topic_info(topic));
        let shown = holders.iter().filter(|(group, _)| all_lost || !group.record.lost);
        Some(TopicRoute { topic, groups: shown.map(|(group, topic)| route_group(group, topic)).collect() })
    }
}

impl Group {
    /// As `GetCluster` shows it; what is soft state is left out.
    #[must_use]
    pub fn info(&self, cluster: &str) -> BrokerGroupInfo {
        let record = &self.record;
        BrokerGroupInfo {
            cluster: cluster.to_owned(),
            broker_group: record.broker_group.clone(),
            group_uuid: record.group_uuid.clone(),
            term: record.term,
            applied_index: record.applied_index,
            leader_id: record.leader_id,
            members: record.members.iter().map(member_status).collect(),
            view_index: record.view_index,
            topics: u32::try_from(self.topics.len()).unwrap_or(u32::MAX),
            heard_ms_ago: None,
            lost: record.lost,
        }
    }

    /// What the routes of its topics show of the group itself.
    #[must_use]
    pub fn shown_in_routes(&self) -> (String, bool) {
        (self.leader_client_address(), self.record.lost)
    }

    fn leader_client_address(&self) -> String {
        let leader = self.record.members.iter().find(|member| member.node_id == self.record.leader_id);
        leader.map(|leader| leader.client_address.clone()).unwrap_or_default()
    }
}

fn route_group(group: &Group, topic: &NameTopic) -> TopicRouteGroup {
    TopicRouteGroup {
        broker_group: group.record.broker_group.clone(),
        leader_client_address: group.leader_client_address(),
        queues: topic.queues,
        permission: topic.permission,
        message_type: topic.message_type,
    }
}

fn topic_info(topic: &NameTopic) -> TopicInfo {
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

fn member_status(member: &NameMember) -> MemberStatus {
    MemberStatus {
        node_id: member.node_id,
        node: member.node.clone(),
        raft_address: member.raft_address.clone(),
        api_address: member.api_address.clone(),
        client_address: member.client_address.clone(),
        role: member.role.clone(),
        voter: member.voter,
        matched_index: None,
    }
}
