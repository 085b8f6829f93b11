//! Acks and other calls that may be repeated without harm.

use std::sync::Arc;
use std::time::Duration;

use mq_protocol::v2;
use tokio::time::Instant;

use super::{Shared, direct};
use crate::error::{AckError, Cause};
use crate::group::BrokerGroup;
use crate::message::MessageView;
use crate::outcome::{Beside, Verdict, cause, code, status_of};
use crate::pursuit::{Attempt, MessagingClient, Patience, Pursuit};

const PATIENCE: Patience =
    Patience { attempt: Duration::from_secs(3), doubt_after: Duration::from_millis(300) };

impl Shared {
    /// Acks deliveries of one topic and broker group.
    pub(super) async fn ack(&self, messages: &[&MessageView]) -> Vec<Result<(), AckError>> {
        let Some(first) = messages.first() else { return Vec::new() };
        let topic = first.resource().cloned().unwrap_or_default();
        let entry = |message: &&MessageView| v2::AckMessageEntry {
            message_id: message.message_id().to_owned(),
            receipt_handle: message.receipt_handle().to_owned(),
            ..Default::default()
        };
        let body = v2::AckMessageRequest {
            group: Some(self.group.clone()),
            topic: Some(topic.clone()),
            entries: messages.iter().map(entry).collect(),
        };
        let group = self.core.routes.group(first.broker_group());
        let call = |mut client: MessagingClient, time| {
            let request = direct(&self.core, body.clone(), time);
            async move { client.ack_message(request).await }
        };
        let codes = |answer: &v2::AckMessageResponse| {
            if answer.entries.len() != messages.len() {
                return vec![status_of(answer.status.as_ref()); messages.len()];
            }
            let entries = answer.entries.iter();
            entries.map(|entry| status_of(entry.status.as_ref().or(answer.status.as_ref()))).collect()
        };
        match self.settle(&group, &topic, messages.len(), call, codes).await {
            Ok((_, outcomes)) => outcomes,
            Err(error) => vec![Err(error); messages.len()],
        }
    }

    /// A call that may be repeated without harm, until every part of its answer is final or the time is over.
    pub(super) async fn settle<T, R>(
        &self,
        group: &Arc<BrokerGroup>,
        topic: &v2::Resource,
        parts: usize,
        call: impl Fn(MessagingClient, Duration) -> R,
        codes: impl Fn(&T) -> Vec<(i32, String)>,
    ) -> Result<(T, Vec<Result<(), AckError>>), AckError>
    where
        R: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        if group.leader().is_none() && group.members().is_empty() {
            self.core.refresh_route(topic).await;
        }
        let deadline = Instant::now() + self.timeout;
        let mut pursuit = Pursuit::new(&self.core, group, topic);
        let mut last = Cause::NoLeader { broker_group: group.name.clone() };
        while Instant::now() < deadline {
            let response = match pursuit.attempt(deadline, PATIENCE, &call).await {
                Attempt::Answer(response) => response,
                Attempt::NeverSent(cause) | Attempt::Lost(cause) => {
                    pursuit.again(deadline, &cause).await;
                    last = cause;
                    continue;
                }
            };
            let beside = Beside::read(response.metadata());
            let answer = response.into_inner();
            let codes = codes(&answer);
            debug_assert_eq!(codes.len(), parts, "one code per part");
            let open = codes.iter().find(|(code, _)| !is_final(*code));
            let Some((open_code, text)) = open else {
                let outcomes = codes.iter().map(|(code, text)| outcome(*code, text, &beside)).collect();
                return Ok((answer, outcomes));
            };
            last = cause(*open_code, text, &beside);
            let follow = Verdict::of(*open_code) == Verdict::NotLeader;
            if !(follow && pursuit.not_leader(beside.leader.as_ref())) {
                pursuit.pause(deadline).await;
            }
        }
        Err(AckError::Unknown(last))
    }
}

fn is_final(code: i32) -> bool {
    matches!(Verdict::of(code), Verdict::Done | Verdict::Refused)
}

fn outcome(code: i32, text: &str, beside: &Beside) -> Result<(), AckError> {
    match code {
        code::OK => Ok(()),
        code::INVALID_RECEIPT_HANDLE => Err(AckError::Expired(cause(code, text, beside))),
        _ => Err(AckError::Refused(cause(code, text, beside))),
    }
}
