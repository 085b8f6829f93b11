//! Topics, subscription groups, routes, leadership.

use mq_protocol::{cluster, names};

use super::{ANSWER_TIMEOUT, Admin, AdminError, CHANGE_TIMEOUT, check, said};

/// Routes per answer of a name server.
const PAGE: u32 = 1_000;

impl Admin {
    /// Creates a topic or changes what is named of it. True when something changed.
    pub async fn put_topic(&self, request: cluster::PutTopicRequest) -> Result<bool, AdminError> {
        names::topic(&request.name)?;
        let group = request.group.clone();
        self.change(&group, |mut broker, core| {
            let request = core.identity.request(request.clone(), CHANGE_TIMEOUT);
            async move { broker.put_topic(request).await }
        })
        .await
    }

    /// Deletes a topic of one broker group.
    pub async fn delete_topic(&self, request: cluster::DeleteTopicRequest) -> Result<bool, AdminError> {
        let group = request.group.clone();
        self.change(&group, |mut broker, core| {
            let request = core.identity.request(request.clone(), CHANGE_TIMEOUT);
            async move { broker.delete_topic(request).await }
        })
        .await
    }

    /// Topics of one broker group.
    pub async fn topics(
        &self,
        group: &str,
        with_queues: bool,
    ) -> Result<Vec<cluster::TopicInfo>, AdminError> {
        let request = cluster::ListTopicsRequest { group: group.to_owned(), with_queues };
        let answer = self
            .ask_group(group, |mut broker, core| {
                let request = core.identity.request(request.clone(), CHANGE_TIMEOUT);
                async move {
                    let response = broker.list_topics(request).await?;
                    Ok(response.map(|answer| (answer.result.clone(), answer)))
                }
            })
            .await?;
        Ok(answer.topics)
    }

    /// Creates a subscription group or changes what is named of it. True when something changed.
    pub async fn put_subscription_group(
        &self,
        request: cluster::PutSubscriptionGroupRequest,
    ) -> Result<bool, AdminError> {
        names::group(&request.name)?;
        let group = request.group.clone();
        self.change(&group, |mut broker, core| {
            let request = core.identity.request(request.clone(), CHANGE_TIMEOUT);
            async move { broker.put_subscription_group(request).await }
        })
        .await
    }

    /// Deletes a subscription group of one broker group.
    pub async fn delete_subscription_group(
        &self,
        request: cluster::DeleteSubscriptionGroupRequest,
    ) -> Result<bool, AdminError> {
        let group = request.group.clone();
        self.change(&group, |mut broker, core| {
            let request = core.identity.request(request.clone(), CHANGE_TIMEOUT);
            async move { broker.delete_subscription_group(request).await }
        })
        .await
    }

    /// Subscription groups of one broker group.
    pub async fn subscription_groups(
        &self,
        group: &str,
    ) -> Result<Vec<cluster::SubscriptionGroupInfo>, AdminError> {
        let request = cluster::ListSubscriptionGroupsRequest { group: group.to_owned() };
        let answer = self
            .ask_group(group, |mut broker, core| {
                let request = core.identity.request(request.clone(), CHANGE_TIMEOUT);
                async move {
                    let response = broker.list_subscription_groups(request).await?;
                    Ok(response.map(|answer| (answer.result.clone(), answer)))
                }
            })
            .await?;
        Ok(answer.groups)
    }

    /// Hands leadership of a broker group to a member (0 = any that is current).
    pub async fn transfer_leadership(&self, group: &str, target: u64) -> Result<bool, AdminError> {
        let request = cluster::TransferLeadershipRequest { group: group.to_owned(), target };
        self.change(group, |mut broker, core| {
            let request = core.identity.request(request.clone(), CHANGE_TIMEOUT);
            async move { broker.transfer_leadership(request).await }
        })
        .await
    }

    /// The route of a topic as the name servers know it.
    pub async fn topic_route(&self, namespace: &str, name: &str) -> Result<cluster::TopicRoute, AdminError> {
        let request = cluster::GetTopicRouteRequest {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            linearizable: false,
        };
        let answer = self
            .ask_name_server(|mut registry, core| {
                let request = core.identity.request(request.clone(), ANSWER_TIMEOUT);
                async move { registry.get_topic_route(request).await }
            })
            .await?;
        check(answer.result.as_ref())?;
        answer.route.ok_or_else(|| AdminError::Failed(said(0, "answer without a route")))
    }

    /// All topic routes as the name servers know them.
    pub async fn topic_routes(&self) -> Result<Vec<cluster::TopicRoute>, AdminError> {
        let mut routes: Vec<cluster::TopicRoute> = Vec::new();
        loop {
            let last = routes.last().and_then(|route| route.topic.as_ref());
            let start_after =
                last.map_or_else(String::new, |topic| format!("{}%{}", topic.namespace, topic.name));
            let request = cluster::ListTopicRoutesRequest { start_after, limit: PAGE, changed_after: 0 };
            let answer = self
                .ask_name_server(|mut registry, core| {
                    let request = core.identity.request(request.clone(), ANSWER_TIMEOUT);
                    async move { registry.list_topic_routes(request).await }
                })
                .await?;
            check(answer.result.as_ref())?;
            let more = answer.more && !answer.routes.is_empty();
            routes.extend(answer.routes);
            if !more {
                return Ok(routes);
            }
        }
    }
}
