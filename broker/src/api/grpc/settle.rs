//! AckMessage and ChangeInvisibleDuration. The handle names the broker group, so that any node can settle what any
//! other one handed out.

use std::collections::BTreeMap;
use std::sync::Arc;

use mq_protocol::names::Field;
use mq_protocol::v2;
use mq_protocol::v2::messaging_service_client::MessagingServiceClient;
use tonic::{Request, Response};

use super::context::CallContext;
use super::receive::{duration_in, group_of_handle};
use super::{MessagingApi, Target};
use crate::api::status;
use crate::consume::Subscription;
use crate::error::BrokerError;
use crate::forward::{MESSAGE_BYTES_MAX, respond};
use crate::group::BrokerGroup;
use crate::produce::admit;
use crate::refusal::{CallError, Refusal};

/// Acks in one call; official clients send one.
const ENTRIES_MAX: usize = 1_024;

/// Names that settling calls carry.
#[derive(Clone, Copy)]
struct Names<'a> {
    group: &'a v2::Resource,
    topic: &'a v2::Resource,
}

impl MessagingApi {
    pub(super) async fn ack_message_call(
        &self,
        request: Request<v2::AckMessageRequest>,
    ) -> Result<Response<v2::AckMessageResponse>, tonic::Status> {
        let call = match self.admitted(&request) {
            Ok(call) => call,
            Err(refused) => return Ok(*refused),
        };
        let request = request.into_inner();
        let names = match check_names(request.group.as_ref(), request.topic.as_ref()) {
            Ok(names) => names,
            Err(refusal) => return Ok(respond(&call, None, Err(refusal.into()))),
        };
        if request.entries.is_empty() || request.entries.len() > ENTRIES_MAX {
            let refusal = format!("{} entries: 1 to {ENTRIES_MAX} are allowed", request.entries.len());
            return Ok(respond(&call, None, Err(Refusal::BadRequest(refusal).into())));
        }
        Ok(self.ack(&call, &request, names).await)
    }

    async fn ack(
        &self,
        call: &CallContext,
        request: &v2::AckMessageRequest,
        names: Names<'_>,
    ) -> Response<v2::AckMessageResponse> {
        let mut results: Vec<Option<v2::AckMessageResultEntry>> = vec![None; request.entries.len()];
        let mut by_group: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for (at, entry) in request.entries.iter().enumerate() {
            match group_of_handle(&entry.receipt_handle) {
                Ok(group) => by_group.entry(group).or_default().push(at),
                Err(refusal) => results[at] = Some(result(entry, status::of(&refusal.into()))),
            }
        }
        let mut last = None;
        for (broker, places) in &by_group {
            let entries = places.iter().map(|at| request.entries[*at].clone()).collect();
            let part = v2::AckMessageRequest { entries, ..request.clone() };
            let response = self.ack_at(call, broker, &part, names).await;
            let answers = &response.get_ref().entries;
            for (place, at) in places.iter().enumerate() {
                let entry = &request.entries[*at];
                let status = answers.get(place).and_then(|answer| answer.status.clone());
                let status = status.or_else(|| response.get_ref().status.clone()).unwrap_or_default();
                results[*at] = Some(result(entry, status));
            }
            last = Some(response);
        }
        let entries: Vec<_> = results.into_iter().flatten().collect();
        let status = Some(status::common(entries.iter().filter_map(|entry| entry.status.as_ref())));
        let body = v2::AckMessageResponse { status, entries };
        match last {
            // Keeps the headers of a refusal.
            Some(response) => response.map(|_| body),
            None => respond(call, None, Ok(body)),
        }
    }

    async fn ack_at(
        &self,
        call: &CallContext,
        broker: &str,
        request: &v2::AckMessageRequest,
        names: Names<'_>,
    ) -> Response<v2::AckMessageResponse> {
        let target = match self.target_of_broker(broker) {
            Ok(target) => target,
            Err(refusal) => return respond(call, None, Err(refusal.into())),
        };
        let target_ref = &target;
        let response = self
            .forward
            .at_leader(
                call,
                target.leadership(),
                |_| self.ack_here(target_ref, call, request, names),
                |channel, headers| async move {
                    let mut client =
                        MessagingServiceClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
                    client
                        .ack_message(Request::from_parts(headers, tonic::Extensions::new(), request.clone()))
                        .await
                },
            )
            .await;
        self.after(&target, &response);
        response
    }

    async fn ack_here(
        &self,
        target: &Target,
        call: &CallContext,
        request: &v2::AckMessageRequest,
        names: Names<'_>,
    ) -> Result<v2::AckMessageResponse, CallError> {
        let group = here(target)?;
        let handles: Vec<_> = request.entries.iter().map(|entry| entry.receipt_handle.clone()).collect();
        let consumer = &group.open()?.consumer;
        let deadline = self.commit_by(call);
        let settled = consumer.ack(subscription(names), handles, deadline).await?;
        let entries: Vec<_> = request
            .entries
            .iter()
            .zip(settled)
            .map(|(entry, settled)| {
                let status = settled.map_or_else(|error| status::of(&error.into()), |()| status::ok());
                result(entry, status)
            })
            .collect();
        let status = Some(status::common(entries.iter().filter_map(|entry| entry.status.as_ref())));
        Ok(v2::AckMessageResponse { status, entries })
    }

    pub(super) async fn change_invisible_call(
        &self,
        request: Request<v2::ChangeInvisibleDurationRequest>,
    ) -> Result<Response<v2::ChangeInvisibleDurationResponse>, tonic::Status> {
        let call = match self.admitted(&request) {
            Ok(call) => call,
            Err(refused) => return Ok(*refused),
        };
        let request = request.into_inner();
        let target = match self.check_change(&request) {
            Ok(target) => target,
            Err(refusal) => return Ok(respond(&call, None, Err(refusal.into()))),
        };
        let (target_ref, request, call_ref) = (&target, &request, &call);
        let response = self
            .forward
            .at_leader(
                &call,
                target.leadership(),
                |_| self.change_here(target_ref, call_ref, request),
                |channel, headers| async move {
                    let mut client = MessagingServiceClient::new(channel);
                    let request = Request::from_parts(headers, tonic::Extensions::new(), request.clone());
                    client.change_invisible_duration(request).await
                },
            )
            .await;
        self.after(&target, &response);
        Ok(response)
    }

    fn check_change(&self, request: &v2::ChangeInvisibleDurationRequest) -> Result<Target, Refusal> {
        check_names(request.group.as_ref(), request.topic.as_ref())?;
        if request.lite_topic.as_ref().is_some_and(|name| !name.is_empty()) {
            return Err(Refusal::NotOffered("changing messages of lite topics".into()));
        }
        let asked = request.invisible_duration.unwrap_or_default();
        duration_in(&asked, 0, self.limits.invisible_ms_max)?;
        self.target_of_broker(&group_of_handle(&request.receipt_handle)?)
    }

    async fn change_here(
        &self,
        target: &Target,
        call: &CallContext,
        request: &v2::ChangeInvisibleDurationRequest,
    ) -> Result<v2::ChangeInvisibleDurationResponse, CallError> {
        let group = here(target)?;
        let names = check_names(request.group.as_ref(), request.topic.as_ref())?;
        let duration =
            duration_in(&request.invisible_duration.unwrap_or_default(), 0, self.limits.invisible_ms_max)?;
        let consumer = &group.open()?.consumer;
        let (handle, deadline) = (&request.receipt_handle, self.commit_by(call));
        let receipt_handle =
            consumer.change_invisible(subscription(names), handle, duration, deadline).await?;
        Ok(v2::ChangeInvisibleDurationResponse { status: Some(status::ok()), receipt_handle })
    }
}

fn here(target: &Target) -> Result<&Arc<BrokerGroup>, BrokerError> {
    target.group().ok_or(BrokerError::NotLeader { leader: None })
}

fn check_names<'a>(
    group: Option<&'a v2::Resource>,
    topic: Option<&'a v2::Resource>,
) -> Result<Names<'a>, Refusal> {
    let group = admit::present(group, Field::Group)?;
    admit::group_name(group)?;
    let topic = admit::present(topic, Field::Topic)?;
    admit::topic_name(topic)?;
    Ok(Names { group, topic })
}

fn subscription(names: Names<'_>) -> Subscription<'_> {
    Subscription {
        namespace: &names.topic.resource_namespace,
        group: &names.group.name,
        topic: &names.topic.name,
    }
}

fn result(entry: &v2::AckMessageEntry, status: v2::Status) -> v2::AckMessageResultEntry {
    v2::AckMessageResultEntry {
        message_id: entry.message_id.clone(),
        receipt_handle: entry.receipt_handle.clone(),
        status: Some(status),
    }
}
