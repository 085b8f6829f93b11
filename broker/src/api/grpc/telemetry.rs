//! Telemetry: a stream per client that carries its settings, completed by the server. Nothing else in the broker
//! depends on it: a client whose stream is gone, or never came, is served all the same.

use std::sync::Arc;
use std::time::Duration;

use mq_protocol::v2::telemetry_command::Command;
use mq_protocol::{v2, v2::settings::PubSub};
use mq_runtime::tasks::OnError;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Streaming};

use super::MessagingApi;
use super::context::{CallContext, Language, own_group};
use crate::api::status;
use crate::refusal::Refusal;

/// The same settings are pushed again this long after the first answer: a client that fetches several routes at its
/// start can lose the first one.
const PUSH_AGAIN: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];
/// Bytes of settings; they are kept as long as the stream.
const SETTINGS_BYTES_MAX: usize = 64 << 10;
/// Commands that may wait in one stream.
const WAITING_MAX: usize = 16;
/// A client that does not read is given up after this long.
const WRITE_MAX: Duration = Duration::from_secs(10);

/// What a consumer is told when its group has no pauses of its own.
const DEFAULT_PAUSES_S: [i64; 18] =
    [1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1_200, 1_800, 3_600, 7_200];
/// Deliveries including the first when nothing is known of the group.
const DEFAULT_MAX_ATTEMPTS: i32 = 17;
/// Attempts of a send including the first.
const SEND_ATTEMPTS: i32 = 3;

type Outgoing = Result<v2::TelemetryCommand, tonic::Status>;

impl MessagingApi {
    pub(super) async fn telemetry_call(
        &self,
        request: Request<Streaming<v2::TelemetryCommand>>,
    ) -> Result<Response<ReceiverStream<Outgoing>>, tonic::Status> {
        let call = CallContext::of(&request)
            .map_err(|refusal| tonic::Status::invalid_argument(refusal.to_string()))?;
        let (out, stream) = mpsc::channel(WAITING_MAX);
        if let Err(refusal) = call.admit() {
            let command = v2::TelemetryCommand { status: Some(status::of(&refusal.into())), command: None };
            let _ = out.try_send(Ok(command));
            return Ok(Response::new(ReceiverStream::new(stream)));
        }
        let Ok(permit) = Arc::clone(&self.streams).try_acquire_owned() else {
            return Err(tonic::Status::resource_exhausted("too many streams: limits.clients_max is reached"));
        };
        let session = Session { api: self.clone(), call, out, last: None };
        let incoming = request.into_inner();
        self.tasks.spawn("telemetry stream", OnError::Log, async move {
            session.run(incoming).await;
            drop(permit);
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

struct Session {
    api: MessagingApi,
    call: CallContext,
    out: mpsc::Sender<Outgoing>,
    /// The last settings answered; what is pushed again.
    last: Option<v2::Settings>,
}

impl Session {
    async fn run(mut self, mut incoming: Streaming<v2::TelemetryCommand>) {
        let mut again = PUSH_AGAIN.iter();
        let mut began = None;
        let mut next = None;
        loop {
            let push = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                command = incoming.message() => {
                    let Ok(Some(command)) = command else { return };
                    if !self.received(command).await {
                        return;
                    }
                    if began.is_none() {
                        let now = tokio::time::Instant::now();
                        began = Some(now);
                        next = again.next().map(|pause| now + *pause);
                    }
                }
                () = push => {
                    if !self.answer_settings().await {
                        return;
                    }
                    next = began.zip(again.next()).map(|(began, pause)| began + *pause);
                }
                () = self.api.stopping.cancelled() => {
                    self.end(tonic::Status::unavailable("the broker is stopping")).await;
                    return;
                }
            }
        }
    }

    /// Handles one command of the client; false ends the stream.
    async fn received(&mut self, command: v2::TelemetryCommand) -> bool {
        match command.command {
            Some(Command::Settings(settings)) if settings.pub_sub.is_some() => {
                let group = match own_group_of(&settings) {
                    Ok(group) => group,
                    Err(refusal) => {
                        let status = Some(status::of(&refusal.into()));
                        self.write(Ok(v2::TelemetryCommand { status, command: None })).await;
                        return false;
                    }
                };
                self.note(&settings, &group);
                self.last = Some(self.api.complete(&self.call, settings));
                self.answer_settings().await
            }
            Some(Command::Settings(_)) => {
                self.end(tonic::Status::invalid_argument(
                    "settings have neither publishing nor subscription",
                ))
                .await;
                false
            }
            _ if self.last.is_none() => {
                self.end(tonic::Status::invalid_argument("the first command must be settings")).await;
                false
            }
            // Answers to commands; none are sent by this version.
            _ => true,
        }
    }

    fn note(&self, settings: &v2::Settings, group: &str) {
        let call = &self.call;
        let client_type = settings.client_type.unwrap_or_default();
        self.api.clients.seen(&call.client_id, &call.language_text, &call.version, client_type, group, None);
    }

    async fn answer_settings(&self) -> bool {
        let Some(settings) = &self.last else { return true };
        let command = Some(Command::Settings(settings.clone()));
        self.write(Ok(v2::TelemetryCommand { status: Some(status::ok()), command })).await
    }

    async fn end(&self, status: tonic::Status) {
        self.write(Err(status)).await;
    }

    async fn write(&self, item: Outgoing) -> bool {
        matches!(tokio::time::timeout(WRITE_MAX, self.out.send(item)).await, Ok(Ok(())))
    }
}

impl MessagingApi {
    /// The client's settings with everything filled that any official client reads; the rest as sent.
    fn complete(&self, call: &CallContext, mut settings: v2::Settings) -> v2::Settings {
        settings.request_timeout.get_or_insert(seconds(3));
        let endpoints = settings.access_point.clone().filter(|point| !point.addresses.is_empty());
        settings.metric =
            Some(v2::Metric { on: false, endpoints: endpoints.or_else(|| self.own_endpoints()) });
        match &mut settings.pub_sub {
            Some(PubSub::Subscription(subscription)) => {
                let group = subscription.group.as_ref().and_then(|name| self.subscription_group(name));
                subscription.fifo = Some(group.as_ref().is_some_and(|group| group.ordered));
                subscription.receive_batch_size =
                    Some(i32::try_from(self.limits.receive_batch_max).unwrap_or(32));
                let poll = i64::try_from(self.limits.poll_ms_max / 1_000).unwrap_or(20).max(5);
                subscription.long_polling_timeout = Some(seconds(poll));
                subscription.lite_subscription_quota = Some(0);
                subscription.max_lite_topic_size = Some(64);
                let attempts = group.as_ref().and_then(|group| i32::try_from(group.max_attempts).ok());
                let pauses = group.map(|group| group.retry_pauses_ms.clone()).unwrap_or_default();
                settings.backoff_policy =
                    Some(consumer_policy(call.language, attempts.filter(|most| *most > 0), &pauses));
            }
            Some(PubSub::Publishing(publishing)) => {
                publishing.max_body_size = i32::try_from(self.limits.body_bytes_max).unwrap_or(i32::MAX);
                publishing.validate_message_type = true;
                settings.backoff_policy = Some(v2::RetryPolicy {
                    max_attempts: SEND_ATTEMPTS,
                    strategy: Some(exponential(milliseconds(10), seconds(1))),
                });
            }
            None => {}
        }
        settings
    }

    fn subscription_group(&self, name: &v2::Resource) -> Option<Arc<crate::state::SubscriptionGroup>> {
        self.groups.iter().find_map(|group| group.subscription_group(&name.resource_namespace, &name.name))
    }

    fn own_endpoints(&self) -> Option<v2::Endpoints> {
        Some(super::route::endpoints(&self.client_address))
    }
}

/// The group that settings name, if they are such as can be kept.
fn own_group_of(settings: &v2::Settings) -> Result<String, Refusal> {
    let bytes = settings.encoded_len();
    if bytes > SETTINGS_BYTES_MAX {
        let text = format!("settings of {bytes} bytes, allowed are {SETTINGS_BYTES_MAX}");
        return Err(Refusal::BadRequest(text));
    }
    match &settings.pub_sub {
        Some(PubSub::Subscription(subscription)) => own_group(subscription.group.as_ref()),
        _ => Ok(String::new()),
    }
}

/// Python understands a list only, Node an exponential policy only; the others both.
fn consumer_policy(language: Language, max_attempts: Option<i32>, pauses_ms: &[u64]) -> v2::RetryPolicy {
    let pauses: Vec<_> = if pauses_ms.is_empty() {
        DEFAULT_PAUSES_S.iter().map(|pause| seconds(*pause)).collect()
    } else {
        pauses_ms.iter().map(|pause| milliseconds(*pause)).collect()
    };
    let strategy = match (language, pauses_ms) {
        (Language::Python, _) => {
            v2::retry_policy::Strategy::CustomizedBackoff(v2::CustomizedBackoff { next: pauses })
        }
        (_, []) => exponential(seconds(5), seconds(7_200)),
        (_, [first, .., last]) => exponential(milliseconds(*first), milliseconds(*first.max(last))),
        (_, [only]) => exponential(milliseconds(*only), milliseconds(*only)),
    };
    v2::RetryPolicy { max_attempts: max_attempts.unwrap_or(DEFAULT_MAX_ATTEMPTS), strategy: Some(strategy) }
}

fn exponential(initial: prost_types::Duration, max: prost_types::Duration) -> v2::retry_policy::Strategy {
    let backoff = v2::ExponentialBackoff { initial: Some(initial), max: Some(max), multiplier: 2.0 };
    v2::retry_policy::Strategy::ExponentialBackoff(backoff)
}

fn seconds(seconds: i64) -> prost_types::Duration {
    prost_types::Duration { seconds, nanos: 0 }
}

fn milliseconds(ms: u64) -> prost_types::Duration {
    let nanos = i32::try_from(ms % 1_000 * 1_000_000).unwrap_or(0);
    prost_types::Duration { seconds: i64::try_from(ms / 1_000).unwrap_or(i64::MAX), nanos }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_cannot_be_kept_are_refused() {
        let of = |group: &str, agent: usize| {
            let group = Some(v2::Resource { resource_namespace: String::new(), name: group.into() });
            let subscription = v2::Subscription { group, ..Default::default() };
            own_group_of(&v2::Settings {
                user_agent: Some(v2::Ua { hostname: "h".repeat(agent), ..Default::default() }),
                pub_sub: Some(PubSub::Subscription(subscription)),
                ..Default::default()
            })
        };
        assert_eq!(of("g", 10), Ok("g".to_owned()));
        assert!(matches!(of("a b", 10), Err(Refusal::Invalid(_))));
        assert!(matches!(of("g", 64 << 10), Err(Refusal::BadRequest(_))));
    }

    #[test]
    fn consumers_get_the_policy_that_their_client_understands() {
        use v2::retry_policy::Strategy as S;
        let python = consumer_policy(Language::Python, None, &[]);
        assert_eq!(python.max_attempts, 17);
        assert!(matches!(python.strategy, Some(S::CustomizedBackoff(list)) if list.next.len() == 18));
        let other = consumer_policy(Language::Other, Some(3), &[1_500, 9_000]);
        let Some(S::ExponentialBackoff(backoff)) = other.strategy else { panic!("exponential expected") };
        assert_eq!(other.max_attempts, 3);
        assert_eq!(backoff.initial, Some(prost_types::Duration { seconds: 1, nanos: 500_000_000 }));
        assert_eq!(backoff.max, Some(seconds(9)));
    }
}
