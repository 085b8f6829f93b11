//! Queues read by position, whoever consumes them.

use mq_protocol::cluster;
use mq_protocol::cluster::broker_admin_client::BrokerAdminClient;
use tonic::transport::Channel;

use super::{Admin, AdminError, CHANGE_TIMEOUT, check, unanswered};

impl Admin {
    /// Messages of one queue of a broker group, from a position on. With `local` unset: everything that was answered
    /// before the call is there. With `local`: what whichever member answers has by now; to ask a certain one, see
    /// [`Admin::read_queue_at`].
    pub async fn read_queue(
        &self,
        request: cluster::ReadQueueRequest,
    ) -> Result<cluster::ReadQueueResponse, AdminError> {
        let group = request.group.clone();
        self.ask_group(&group, |mut broker, core| {
            let request = core.identity.request(request.clone(), CHANGE_TIMEOUT);
            async move {
                let response = broker.read_queue(request).await?;
                Ok(response.map(|answer| (answer.result.clone(), answer)))
            }
        })
        .await
    }

    /// What one member has of a queue: asked once, never repeated elsewhere. `request.local` is set by this call.
    pub async fn read_queue_at(
        &self,
        api_address: &str,
        request: cluster::ReadQueueRequest,
    ) -> Result<cluster::ReadQueueResponse, AdminError> {
        let request = cluster::ReadQueueRequest { local: true, ..request };
        let request = self.core.identity.request(request, CHANGE_TIMEOUT);
        let call = |channel| async move { BrokerAdminClient::new(channel).read_queue(request).await };
        self.ask_member(api_address, call, |answer| answer.result.as_ref()).await
    }

    /// First and next positions of all queues of a topic in one broker group.
    pub async fn queue_offsets(
        &self,
        request: cluster::QueueOffsetsRequest,
    ) -> Result<cluster::QueueOffsetsResponse, AdminError> {
        let group = request.group.clone();
        self.ask_group(&group, |mut broker, core| {
            let request = core.identity.request(request.clone(), CHANGE_TIMEOUT);
            async move {
                let response = broker.queue_offsets(request).await?;
                Ok(response.map(|answer| (answer.result.clone(), answer)))
            }
        })
        .await
    }

    /// The same as one member has it: asked once, never repeated elsewhere. `request.local` is set by this call.
    pub async fn queue_offsets_at(
        &self,
        api_address: &str,
        request: cluster::QueueOffsetsRequest,
    ) -> Result<cluster::QueueOffsetsResponse, AdminError> {
        let request = cluster::QueueOffsetsRequest { local: true, ..request };
        let request = self.core.identity.request(request, CHANGE_TIMEOUT);
        let call = |channel| async move { BrokerAdminClient::new(channel).queue_offsets(request).await };
        self.ask_member(api_address, call, |answer| answer.result.as_ref()).await
    }

    /// One call to one member, with its verdict.
    async fn ask_member<T, R>(
        &self,
        api_address: &str,
        call: impl FnOnce(Channel) -> R,
        result: impl FnOnce(&T) -> Option<&cluster::AdminResult>,
    ) -> Result<T, AdminError>
    where
        R: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        let answer = self.core.call(api_address, CHANGE_TIMEOUT, call).await;
        let answer = answer.map_err(|error| unanswered(error, api_address))?;
        check(result(&answer))?;
        Ok(answer)
    }
}
