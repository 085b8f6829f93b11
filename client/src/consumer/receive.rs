//! One receive: where to ask, how long, and what the stream brought.

use std::sync::Arc;
use std::time::Duration;

use mq_protocol::v2;
use tokio::time::Instant;

use super::{Shared, direct, duration};
use crate::error::{Cause, ReceiveError};
use crate::group::BrokerGroup;
use crate::message::{FilterExpression, MessageView};
use crate::outcome::{Beside, Verdict, cause, code, status_of};
use crate::pursuit::{Attempt, MessagingClient, Patience, Pursuit};

const DOUBT_AFTER: Duration = Duration::from_secs(1);

pub(super) type Source = (v2::Resource, FilterExpression, Arc<BrokerGroup>);

pub(super) struct Receive<'a> {
    pub(super) topic: &'a v2::Resource,
    pub(super) filter: &'a FilterExpression,
    pub(super) group: &'a Arc<BrokerGroup>,
    pub(super) max: usize,
    pub(super) invisible: Duration,
}

#[derive(Debug, Default)]
struct Received {
    status: Option<v2::Status>,
    messages: Vec<v2::Message>,
}

impl Shared {
    /// Every broker group of every subscribed topic.
    pub(super) async fn sources(&self, deadline: Instant) -> Result<Vec<Source>, ReceiveError> {
        let mut sources = Vec::new();
        for (topic, filter) in &self.subscriptions {
            let route = self.core.route(topic, deadline).await.map_err(|cause| match cause {
                Cause::Status { .. } => ReceiveError::Refused(cause),
                cause => ReceiveError::Unavailable(cause),
            })?;
            sources.extend(route.readable().map(|group| (topic.clone(), filter.clone(), Arc::clone(group))));
        }
        if sources.is_empty() {
            let topic = self.subscriptions.first().map_or("", |(topic, _)| &topic.name).to_owned();
            let reason = "no queue of it can be read".to_owned();
            return Err(ReceiveError::Refused(Cause::NoRoute { topic, reason }));
        }
        Ok(sources)
    }

    pub(super) async fn receive_from(
        &self,
        receive: &Receive<'_>,
        poll_end: Instant,
        deadline: Instant,
    ) -> Result<Vec<MessageView>, ReceiveError> {
        let mut pursuit = Pursuit::new(&self.core, receive.group, receive.topic);
        let mut last = Cause::NoLeader { broker_group: receive.group.name.clone() };
        while Instant::now() < deadline {
            let patience = Patience { attempt: deadline - Instant::now(), doubt_after: DOUBT_AFTER };
            let call = |client: MessagingClient, time: Duration| {
                let poll = poll_end.saturating_duration_since(Instant::now());
                let request = direct(&self.core, self.receive_request(receive, poll), time);
                collect(client, request, receive.max)
            };
            let response = match pursuit.attempt(deadline, patience, call).await {
                Attempt::Answer(response) => response,
                Attempt::NeverSent(cause) | Attempt::Lost(cause) => {
                    pursuit.again(deadline, &cause).await;
                    last = cause;
                    continue;
                }
            };
            let beside = Beside::read(response.metadata());
            let received = response.into_inner();
            let (code, text) = status_of(received.status.as_ref());
            if !received.messages.is_empty() || code == code::OK || code == code::MESSAGE_NOT_FOUND {
                let view = |message| MessageView::new(message, &receive.group.name);
                return Ok(received.messages.into_iter().map(view).collect());
            }
            last = cause(code, &text, &beside);
            match Verdict::of(code) {
                Verdict::Refused => {
                    self.core.routes.forget(receive.topic);
                    return Err(ReceiveError::Refused(last));
                }
                Verdict::NotLeader if pursuit.not_leader(beside.leader.as_ref()) => {}
                _ => pursuit.pause(deadline).await,
            }
        }
        Err(ReceiveError::Unavailable(last))
    }

    fn receive_request(&self, receive: &Receive<'_>, poll: Duration) -> v2::ReceiveMessageRequest {
        v2::ReceiveMessageRequest {
            group: Some(self.group.clone()),
            message_queue: Some(v2::MessageQueue {
                topic: Some(receive.topic.clone()),
                id: -1,
                permission: v2::Permission::ReadWrite.into(),
                broker: Some(v2::Broker { name: receive.group.name.clone(), id: 0, endpoints: None }),
                accept_message_types: vec![v2::MessageType::Normal.into()],
            }),
            filter_expression: Some(v2::FilterExpression {
                r#type: receive.filter.kind.into(),
                expression: receive.filter.expression.clone(),
            }),
            batch_size: i32::try_from(receive.max).unwrap_or(i32::MAX),
            invisible_duration: Some(duration(receive.invisible)),
            auto_renew: false,
            long_polling_timeout: Some(duration(poll)),
            attempt_id: None,
        }
    }
}

/// Reads a receive's stream to its end. What arrived before a break counts: those messages are delivered.
async fn collect(
    mut client: MessagingClient,
    request: tonic::Request<v2::ReceiveMessageRequest>,
    max: usize,
) -> Result<tonic::Response<Received>, tonic::Status> {
    use v2::receive_message_response::Content;
    let (metadata, mut stream, extensions) = client.receive_message(request).await?.into_parts();
    let mut received = Received::default();
    loop {
        let content = match stream.message().await {
            Ok(Some(part)) => part.content,
            Ok(None) => break,
            Err(_) if !received.messages.is_empty() => break,
            Err(status) => return Err(status),
        };
        match content {
            Some(Content::Status(status)) => received.status = Some(status),
            Some(Content::Message(message)) if received.messages.len() < max => {
                received.messages.push(message)
            }
            _ => {}
        }
    }
    Ok(tonic::Response::from_parts(metadata, received, extensions))
}
