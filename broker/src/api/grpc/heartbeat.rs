//! Heartbeat and NotifyClientTermination. Both are soft state: the node that is asked notes it and copies it to the
//! leaders of its broker groups, which know by it who is connected where. A client that was never heard of, or
//! never opened a stream, is answered like any other.

use std::sync::Arc;
use std::time::Duration;

use mq_protocol::v2;
use mq_protocol::v2::messaging_service_client::MessagingServiceClient;
use mq_runtime::tasks::OnError;
use tonic::{Request, Response};

use super::MessagingApi;
use super::context::{CallContext, own_group};
use crate::api::status;
use crate::forward::respond;
use crate::group::BrokerGroup;

/// A copy to a leader is worth waiting for this long.
const COPY_MAX: Duration = Duration::from_millis(800);

impl MessagingApi {
    pub(super) async fn heartbeat_call(
        &self,
        request: Request<v2::HeartbeatRequest>,
    ) -> Result<Response<v2::HeartbeatResponse>, tonic::Status> {
        let call = match self.admitted(&request) {
            Ok(call) => call,
            Err(refused) => return Ok(*refused),
        };
        let heartbeat = request.into_inner();
        let group = match own_group(heartbeat.group.as_ref()) {
            Ok(group) => group,
            Err(refusal) => return Ok(respond(&call, None, Err(refusal.into()))),
        };
        self.clients.seen(
            &call.client_id,
            &call.language_text,
            &call.version,
            heartbeat.client_type,
            &group,
            call.forwarded.as_deref(),
        );
        if call.forwarded.is_none() {
            self.copy_heartbeat(&call, &heartbeat);
        }
        let answer = v2::HeartbeatResponse { status: Some(status::ok()) };
        Ok(respond(&call, None, Ok(answer)))
    }

    /// Sends the heartbeat on in the background, unless many copies are on their way already.
    fn copy_heartbeat(&self, call: &CallContext, heartbeat: &v2::HeartbeatRequest) {
        let Ok(permit) = Arc::clone(&self.copies).try_acquire_owned() else { return };
        let copies: Vec<_> =
            self.led_elsewhere().map(|group| self.copy(call, &group, heartbeat.clone())).collect();
        self.tasks.spawn("heartbeat copies", OnError::Log, async move {
            for copy in copies.into_iter().flatten() {
                let (mut client, request) = copy;
                // Soft state: the next heartbeat makes up for a lost one.
                let _ = tokio::time::timeout(COPY_MAX, client.heartbeat(request)).await;
            }
            drop(permit);
        });
    }

    pub(super) async fn termination_call(
        &self,
        request: Request<v2::NotifyClientTerminationRequest>,
    ) -> Result<Response<v2::NotifyClientTerminationResponse>, tonic::Status> {
        let call = match self.admitted(&request) {
            Ok(call) => call,
            Err(refused) => return Ok(*refused),
        };
        let goodbye = request.into_inner();
        let consumer = match own_group(goodbye.group.as_ref()) {
            Ok(group) => !group.is_empty(),
            Err(refusal) => return Ok(respond(&call, None, Err(refusal.into()))),
        };
        self.clients.gone(&call.client_id);
        if consumer {
            for group in self.groups.iter().filter(|group| group.leads()) {
                if let Ok(open) = group.open() {
                    // What is not noted now ends with its invisible time.
                    if let Err(error) =
                        open.consumer.client_gone(&call.client_id, self.commit_by(&call)).await
                    {
                        tracing::debug!(group = group.name, %error, "a goodbye was not noted");
                    }
                }
            }
        }
        if call.forwarded.is_none() && consumer {
            let copies = self.led_elsewhere().filter_map(|group| self.copy(&call, &group, goodbye.clone()));
            let copies = copies.map(|(mut client, request)| async move {
                let _ = tokio::time::timeout(COPY_MAX, client.notify_client_termination(request)).await;
            });
            futures::future::join_all(copies).await;
        }
        let answer = v2::NotifyClientTerminationResponse { status: Some(status::ok()) };
        Ok(respond(&call, None, Ok(answer)))
    }

    fn led_elsewhere(&self) -> impl Iterator<Item = Arc<BrokerGroup>> {
        self.groups.iter().filter(|group| !group.leads()).cloned()
    }

    fn copy<T>(
        &self,
        call: &CallContext,
        group: &BrokerGroup,
        message: T,
    ) -> Option<(MessagingServiceClient<tonic::transport::Channel>, Request<T>)> {
        let leader = group.leadership().borrow().leader.clone()?;
        let channel = self.forward.channel(&leader.api_address).ok()?;
        let request = Request::from_parts(self.forward.headers(call), tonic::Extensions::new(), message);
        Some((MessagingServiceClient::new(channel), request))
    }
}
