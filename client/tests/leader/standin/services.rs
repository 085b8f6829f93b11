//! The services of a stand-in node.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use mq_protocol::v2::messaging_service_server::MessagingService;
use mq_protocol::{headers, v2};
use parking_lot::Mutex;
use tonic::{Request, Response, Status};

use super::{GROUP, Seen, State, Step};

/// What the leader does with the next receive.
#[derive(Debug, Clone)]
pub enum ReceiveStep {
    /// These bodies.
    Messages(Vec<&'static str>),
    /// A status without messages.
    Say(i32),
    /// A status and one body, then the stream breaks.
    BreakAfterOne(&'static str),
    /// No answer.
    Hang,
}

#[derive(Debug, Clone)]
pub struct Node {
    pub id: usize,
    pub state: Arc<Mutex<State>>,
}

fn status(code: i32) -> Option<v2::Status> {
    Some(v2::Status { code, message: format!("code {code}") })
}

fn text<T>(request: &Request<T>, key: &str) -> String {
    let value = request.metadata().get(key).and_then(|value| value.to_str().ok());
    value.unwrap_or_default().to_owned()
}

async fn never<T>() -> Result<T, Status> {
    tokio::time::sleep(Duration::from_secs(3_600)).await;
    Err(Status::internal("an hour is over"))
}

impl Node {
    /// An answer of a node that does not lead; `None` when this one does.
    fn redirect<T>(&self, body: impl Fn(Option<v2::Status>) -> T) -> Option<Response<T>> {
        let state = self.state.lock();
        if state.leader == self.id {
            return None;
        }
        let mut response = Response::new(body(status(50_002)));
        let named = state.hint.unwrap_or(state.leader);
        if let Some(address) = state.addresses.get(named) {
            let hint = format!("{},{},{address}", named + 1, state.term).parse().expect("header text");
            response.metadata_mut().insert(headers::LEADER, hint);
        }
        Some(response)
    }

    fn store(&self, seen: &Seen) -> Vec<v2::SendResultEntry> {
        let mut state = self.state.lock();
        let stored = seen.sequences().zip(&seen.bodies);
        stored
            .map(|(sequence, body)| v2::SendResultEntry {
                status: status(20_000),
                offset: state.store(seen.numbers, sequence, body.clone()),
                ..Default::default()
            })
            .collect()
    }
}

fn answer(code: i32, entries: Vec<v2::SendResultEntry>) -> Response<v2::SendMessageResponse> {
    Response::new(v2::SendMessageResponse { status: status(code), entries })
}

impl Node {
    async fn scripted(&self, seen: Seen) -> Result<Response<v2::SendMessageResponse>, Status> {
        let step = self.state.lock().script.pop_front();
        match step {
            None => Ok(answer(20_000, self.store(&seen))),
            Some(Step::Slow(time)) => {
                tokio::time::sleep(time).await;
                Ok(answer(20_000, self.store(&seen)))
            }
            Some(Step::Held) => {
                while !self.state.lock().released {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                Ok(answer(20_000, self.store(&seen)))
            }
            Some(Step::Refuse(code, reason)) => {
                let mut response = answer(code, Vec::new());
                if let Some(reason) = reason {
                    response.metadata_mut().insert(headers::REASON, reason.parse().expect("header text"));
                }
                Ok(response)
            }
            Some(Step::RefuseSeveral(code)) if seen.bodies.len() > 1 => Ok(answer(code, Vec::new())),
            Some(Step::RefuseSeveral(_)) => Ok(answer(20_000, self.store(&seen))),
            Some(Step::RefuseSecond(code)) => {
                let first = Seen { bodies: vec![seen.bodies[0].clone()], ..seen.clone() };
                let mut entries = self.store(&first);
                if seen.bodies.len() > 1 {
                    entries.push(v2::SendResultEntry { status: status(code), ..Default::default() });
                    let mut rest = seen.clone();
                    rest.bodies.drain(..2);
                    rest.numbers.first_sequence += 2;
                    entries.extend(self.store(&rest));
                }
                Ok(answer(30_000, entries))
            }
            Some(Step::StoreAndBreak) => {
                self.store(&seen);
                Err(Status::unavailable("the connection broke"))
            }
            Some(Step::StoreAndSay(code)) => {
                self.store(&seen);
                Ok(answer(code, Vec::new()))
            }
            Some(Step::Break) => Err(Status::unavailable("the connection broke")),
            Some(Step::Hang) => never().await,
        }
    }
}

type ReceiveStream = Pin<Box<dyn futures::Stream<Item = Result<v2::ReceiveMessageResponse, Status>> + Send>>;

fn stream(parts: Vec<Result<v2::ReceiveMessageResponse, Status>>) -> ReceiveStream {
    Box::pin(futures::stream::iter(parts))
}

fn part(content: v2::receive_message_response::Content) -> Result<v2::ReceiveMessageResponse, Status> {
    Ok(v2::ReceiveMessageResponse { content: Some(content) })
}

fn delivered(topic: Option<v2::Resource>, body: &str) -> v2::Message {
    v2::Message {
        topic,
        body: body.to_owned().into(),
        system_properties: Some(v2::SystemProperties {
            receipt_handle: Some(format!("handle of {body}")),
            delivery_attempt: Some(1),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// What an asynchronous method of a service returns: macros inside of its implementation have to say it.
type Unserved<'a, T> = Pin<Box<dyn Future<Output = Result<Response<T>, Status>> + Send + 'a>>;

macro_rules! not_here {
    ($($name:ident: $request:ident -> $response:ident),*) => {
        $(fn $name<'a, 'async_trait>(&'a self, _: Request<v2::$request>) -> Unserved<'async_trait, v2::$response>
        where
            'a: 'async_trait,
            Self: 'async_trait,
        {
            Box::pin(async { Err(Status::unimplemented(stringify!($name))) })
        })*
    };
}

#[tonic::async_trait]
impl MessagingService for Node {
    type ReceiveMessageStream = ReceiveStream;
    type PullMessageStream =
        Pin<Box<dyn futures::Stream<Item = Result<v2::PullMessageResponse, Status>> + Send>>;
    type TelemetryStream = Pin<Box<dyn futures::Stream<Item = Result<v2::TelemetryCommand, Status>> + Send>>;

    async fn query_route(
        &self,
        request: Request<v2::QueryRouteRequest>,
    ) -> Result<Response<v2::QueryRouteResponse>, Status> {
        let topic = request.into_inner().topic;
        let mut state = self.state.lock();
        state.routes_asked += 1;
        if topic.as_ref().is_none_or(|topic| topic.name == "unknown") {
            return Ok(Response::new(v2::QueryRouteResponse {
                status: status(40_402),
                ..Default::default()
            }));
        }
        let (host, port) =
            state.addresses[state.route.unwrap_or(state.leader)].rsplit_once(':').expect("host:port");
        let address = v2::Address { host: host.to_owned(), port: port.parse().expect("a port") };
        let broker = v2::Broker {
            name: GROUP.to_owned(),
            id: 0,
            endpoints: Some(v2::Endpoints {
                scheme: v2::AddressScheme::IPv4.into(),
                addresses: vec![address],
            }),
        };
        let queue = |id| v2::MessageQueue {
            topic: topic.clone(),
            id,
            permission: v2::Permission::ReadWrite.into(),
            broker: Some(broker.clone()),
            accept_message_types: vec![v2::MessageType::Normal.into()],
        };
        let message_queues = (0..4).map(queue).collect();
        Ok(Response::new(v2::QueryRouteResponse { status: status(20_000), message_queues }))
    }

    async fn send_message(
        &self,
        request: Request<v2::SendMessageRequest>,
    ) -> Result<Response<v2::SendMessageResponse>, Status> {
        let numbers = text(&request, headers::PRODUCER).parse().expect("every send has its numbers");
        let no_forward = text(&request, headers::NO_FORWARD) == "1";
        let client_id = text(&request, headers::CLIENT_ID);
        let messages = request.into_inner().messages;
        let bodies =
            messages.iter().map(|message| String::from_utf8_lossy(&message.body).into_owned()).collect();
        let queue = |message: &v2::Message| message.system_properties.as_ref().expect("set").queue_id;
        let queues = messages.iter().map(queue).collect();
        let seen = Seen { node: self.id, numbers, no_forward, client_id, bodies, queues };
        self.state.lock().seen.push(seen.clone());
        if let Some(response) =
            self.redirect(|status| v2::SendMessageResponse { status, entries: Vec::new() })
        {
            return Ok(response);
        }
        self.scripted(seen).await
    }

    async fn receive_message(
        &self,
        request: Request<v2::ReceiveMessageRequest>,
    ) -> Result<Response<ReceiveStream>, Status> {
        use v2::receive_message_response::Content;
        let redirect = self.redirect(|status| status).map(|response| {
            let (metadata, status, extensions) = response.into_parts();
            let parts = vec![part(Content::Status(status.expect("set")))];
            Response::from_parts(metadata, stream(parts), extensions)
        });
        if let Some(response) = redirect {
            return Ok(response);
        }
        let topic = request.into_inner().message_queue.and_then(|queue| queue.topic);
        let step = self.state.lock().receive.pop_front().unwrap_or(ReceiveStep::Say(40_401));
        let said = |code| part(Content::Status(v2::Status { code, message: String::new() }));
        let message = |body: &str| part(Content::Message(delivered(topic.clone(), body)));
        let parts = match step {
            ReceiveStep::Say(code) => vec![said(code)],
            ReceiveStep::Messages(bodies) => {
                std::iter::once(said(20_000)).chain(bodies.into_iter().map(message)).collect()
            }
            ReceiveStep::BreakAfterOne(body) => {
                vec![said(20_000), message(body), Err(Status::unavailable("the stream broke"))]
            }
            ReceiveStep::Hang => return never().await,
        };
        Ok(Response::new(stream(parts)))
    }

    async fn ack_message(
        &self,
        request: Request<v2::AckMessageRequest>,
    ) -> Result<Response<v2::AckMessageResponse>, Status> {
        if let Some(response) = self.redirect(|status| v2::AckMessageResponse { status, entries: Vec::new() })
        {
            return Ok(response);
        }
        let mut state = self.state.lock();
        let entry = |entry: v2::AckMessageEntry| {
            let code = state.acks.pop_front().unwrap_or(20_000);
            if code == 20_000 {
                state.acked.push(entry.receipt_handle.clone());
            }
            v2::AckMessageResultEntry { status: status(code), ..Default::default() }
        };
        let entries: Vec<_> = request.into_inner().entries.into_iter().map(entry).collect();
        Ok(Response::new(v2::AckMessageResponse { status: status(20_000), entries }))
    }

    async fn change_invisible_duration(
        &self,
        request: Request<v2::ChangeInvisibleDurationRequest>,
    ) -> Result<Response<v2::ChangeInvisibleDurationResponse>, Status> {
        let none = |status| v2::ChangeInvisibleDurationResponse { status, receipt_handle: String::new() };
        if let Some(response) = self.redirect(none) {
            return Ok(response);
        }
        let code = self.state.lock().changes.pop_front().unwrap_or(20_000);
        let receipt_handle = format!("changed {}", request.into_inner().receipt_handle);
        Ok(Response::new(v2::ChangeInvisibleDurationResponse { status: status(code), receipt_handle }))
    }

    async fn notify_client_termination(
        &self,
        _: Request<v2::NotifyClientTerminationRequest>,
    ) -> Result<Response<v2::NotifyClientTerminationResponse>, Status> {
        Ok(Response::new(v2::NotifyClientTerminationResponse { status: status(20_000) }))
    }

    async fn pull_message(
        &self,
        _: Request<v2::PullMessageRequest>,
    ) -> Result<Response<Self::PullMessageStream>, Status> {
        Err(Status::unimplemented("pull"))
    }

    async fn telemetry(
        &self,
        _: Request<tonic::Streaming<v2::TelemetryCommand>>,
    ) -> Result<Response<Self::TelemetryStream>, Status> {
        Err(Status::unimplemented("telemetry"))
    }

    not_here! {
        heartbeat: HeartbeatRequest -> HeartbeatResponse,
        query_assignment: QueryAssignmentRequest -> QueryAssignmentResponse,
        forward_message_to_dead_letter_queue:
            ForwardMessageToDeadLetterQueueRequest -> ForwardMessageToDeadLetterQueueResponse,
        update_offset: UpdateOffsetRequest -> UpdateOffsetResponse,
        get_offset: GetOffsetRequest -> GetOffsetResponse,
        query_offset: QueryOffsetRequest -> QueryOffsetResponse,
        end_transaction: EndTransactionRequest -> EndTransactionResponse,
        recall_message: RecallMessageRequest -> RecallMessageResponse,
        sync_lite_subscription: SyncLiteSubscriptionRequest -> SyncLiteSubscriptionResponse
    }
}
