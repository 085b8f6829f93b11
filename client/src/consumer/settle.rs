//! Acks and other calls that may be repeated without harm.
//!
//! What always holds: a refusal is reported as one only when no attempt before it may have done the part.

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

/// What a call does with a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Settlement {
    /// Ends it. The handle of a delivery that was acked before is answered with OK.
    Ack,
    /// Changes its invisible time. That replaces the handle: the next attempt finds the old one invalid.
    Change,
}

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
        match self.settle(Settlement::Ack, &group, &topic, messages.len(), call, codes).await {
            Ok((_, outcomes)) => outcomes,
            Err(error) => vec![Err(error); messages.len()],
        }
    }

    /// A call that may be repeated without harm, until every part of its answer is final or the time is over.
    pub(super) async fn settle<T, R>(
        &self,
        settlement: Settlement,
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
        let mut maybe_done = vec![false; parts];
        let mut last = Cause::NoLeader { broker_group: group.name.clone() };
        while Instant::now() < deadline {
            let response = match pursuit.attempt(deadline, PATIENCE, &call).await {
                Attempt::Answer(response) => response,
                Attempt::NeverSent(cause) => {
                    pursuit.again(deadline, &cause).await;
                    last = cause;
                    continue;
                }
                Attempt::Lost(cause) => {
                    maybe_done.fill(true);
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
                let outcomes = codes.iter().zip(maybe_done).map(|((code, text), maybe_done)| {
                    outcome(settlement, *code, cause(*code, text, &beside), maybe_done)
                });
                return Ok((answer, outcomes.collect()));
            };
            for ((code, _), maybe_done) in codes.iter().zip(&mut maybe_done) {
                *maybe_done |= matches!(Verdict::of(*code), Verdict::Done | Verdict::Unknown);
            }
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

/// What a final code says of a part that an attempt before may have done.
fn outcome(settlement: Settlement, code: i32, cause: Cause, maybe_done: bool) -> Result<(), AckError> {
    match code {
        code::OK => Ok(()),
        code::INVALID_RECEIPT_HANDLE if settlement == Settlement::Ack || !maybe_done => {
            Err(AckError::Expired(cause))
        }
        _ if maybe_done => Err(AckError::Unknown(cause)),
        _ => Err(AckError::Refused(cause)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_counts_only_when_no_attempt_before_may_have_done_it() {
        let said = |settlement, code, maybe_done| {
            outcome(
                settlement,
                code,
                Cause::Status { code, message: String::new(), reason: None },
                maybe_done,
            )
        };
        for settlement in [Settlement::Ack, Settlement::Change] {
            assert!(said(settlement, 20_000, true).is_ok());
            assert!(matches!(said(settlement, 40_013, false), Err(AckError::Expired(_))));
            assert!(matches!(said(settlement, 40_300, false), Err(AckError::Refused(_))));
            assert!(matches!(said(settlement, 40_000, true), Err(AckError::Unknown(_))));
        }
        let changed = said(Settlement::Change, 40_013, true);
        assert!(
            matches!(changed, Err(AckError::Unknown(_))),
            "the attempt before may have replaced the handle"
        );
        let acked = said(Settlement::Ack, 40_013, true);
        assert!(matches!(acked, Err(AckError::Expired(_))), "an ack that was done is answered with OK");
    }
}
