//! SendMessage. The request is checked here, stored by the leader of a broker group that has the topic.

use std::sync::{Arc, OnceLock};

use mq_protocol::v2::messaging_service_client::MessagingServiceClient;
use mq_protocol::{headers, v2};
use mq_store::Term;
use tonic::metadata::MetadataValue;
use tonic::{Request, Response};

use super::MessagingApi;
use super::context::CallContext;
use crate::api::status;
use crate::error::BrokerError;
use crate::forward::{MESSAGE_BYTES_MAX, respond};
use crate::group::{BrokerGroup, Lookup};
use crate::produce::{Produce, admit};
use crate::refusal::CallError;

impl MessagingApi {
    pub(super) async fn send_message_call(
        &self,
        request: Request<v2::SendMessageRequest>,
    ) -> Result<Response<v2::SendMessageResponse>, tonic::Status> {
        let call = match self.admitted(&request) {
            Ok(call) => call,
            Err(refused) => return Ok(*refused),
        };
        let request = request.into_inner();
        let topic = match admit::request(&request, &self.limits) {
            Ok(topic) => topic,
            Err(refusal) => return Ok(respond(&call, None, Err(refusal.into()))),
        };
        let target = match self.target_of_topic(topic, None, call.answer_by()).await {
            Ok(target) => target,
            Err(error) => return Ok(respond(&call, None, Err(error))),
        };
        let (request, call_ref) = (&request, &call);
        // Set once: what sets it is the last answer.
        let reason = &OnceLock::new();
        let mut response = self
            .forward
            .at_leader(
                &call,
                target.leadership(),
                |term| self.store(target.group(), call_ref, (request, reason), topic, term),
                |channel, headers| async move {
                    let mut client =
                        MessagingServiceClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
                    client
                        .send_message(Request::from_parts(headers, tonic::Extensions::new(), request.clone()))
                        .await
                },
            )
            .await;
        if let Some(reason) = reason.get() {
            response.metadata_mut().insert(headers::REASON, MetadataValue::from_static(reason));
        }
        self.after(&target, &response);
        Ok(response)
    }

    async fn store(
        &self,
        group: Option<&Arc<BrokerGroup>>,
        call: &CallContext,
        (request, reason): (&v2::SendMessageRequest, &OnceLock<&'static str>),
        topic: &v2::Resource,
        term: Term,
    ) -> Result<v2::SendMessageResponse, CallError> {
        let group = group.ok_or(BrokerError::NotLeader { leader: None })?;
        let deadline = self.commit_by(call);
        let lookup = Lookup {
            namespace: &topic.resource_namespace,
            name: &topic.name,
            create: self.auto.topics,
            term,
            deadline,
        };
        let known = group.require_topic(lookup).await?;
        let produce = Produce {
            topic: known,
            messages: &request.messages,
            client_id: &call.client_id,
            producer: call.producer,
            born_host: call.peer,
            store_host: self.store_host,
            received_ms: self.clock.wall_ms(),
            term,
            deadline,
        };
        let results = group.produce(&produce).await?;
        let mut entries = Vec::with_capacity(results.len());
        let mut failed = Vec::new();
        for (message, result) in request.messages.iter().zip(results) {
            let message_id = message.system_properties.as_ref().map(|system| system.message_id.clone());
            let mut entry =
                v2::SendResultEntry { message_id: message_id.unwrap_or_default(), ..Default::default() };
            match result {
                Ok(stored) => {
                    entry.status = Some(status::ok());
                    entry.offset = i64::try_from(stored.queue_offset).unwrap_or(i64::MAX);
                    self.metrics.stored(&group.name, &produce.topic, message, stored.repeat);
                }
                Err(error) => {
                    let error = CallError::from(error);
                    entry.status = Some(status::of(&error));
                    failed.push(error);
                }
            }
            entries.push(entry);
        }
        // A single failure goes back as an error, with the headers that belong to it.
        match failed.pop() {
            Some(error) if entries.len() == 1 => Err(error),
            last => {
                if let Some(common) = status::common_reason(failed.iter().chain(&last)) {
                    let _ = reason.set(common);
                }
                let status = Some(status::common(entries.iter().filter_map(|entry| entry.status.as_ref())));
                Ok(v2::SendMessageResponse { status, entries })
            }
        }
    }
}
