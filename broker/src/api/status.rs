//! Errors to wire codes, here and nowhere else. Both matches are exhaustive: a new variant has to be given a code.
//!
//! What a code says about a send (D19): 50002, 501xx, 505xx, 42900 and all 4xxxx mean *certainly not
//! stored* (40800 is never sent); 50400 and everything else mean *unknown*.

use mq_protocol::headers;
use mq_protocol::names::{Field, Invalid, Problem};
use mq_protocol::v2::{Code, Status};

use crate::error::BrokerError;
use crate::refusal::{CallError, Refusal};

/// The status of a call that was done.
pub fn ok() -> Status {
    Status { code: Code::Ok as i32, message: "OK".into() }
}

/// The status of a call that was not done.
pub fn of(error: &CallError) -> Status {
    Status { code: code(error) as i32, message: error.to_string() }
}

/// The code of a call that was not done.
pub fn code(error: &CallError) -> Code {
    match error {
        CallError::Refused(refusal) => refused(refusal),
        CallError::Failed(error) => failed(error),
    }
}

fn refused(refusal: &Refusal) -> Code {
    match refusal {
        // Certain; 40800 is not sent, it would leave the outcome open.
        Refusal::Expired => Code::BadRequest,
        Refusal::BadRequest(_) => Code::BadRequest,
        Refusal::Invalid(invalid) => broken_rule(invalid),
        Refusal::Batch(_) => Code::MessageCorrupted,
        Refusal::TypeConflict { .. } => Code::MessagePropertyConflictWithType,
        Refusal::InvisibleTime { .. } => Code::IllegalInvisibleTime,
        Refusal::PollingTime(_) => Code::IllegalPollingTime,
        Refusal::Handle(_) => Code::InvalidReceiptHandle,
        Refusal::NotOffered(_) => Code::NotImplemented,
        Refusal::UnknownBrokerGroup(_) => Code::NotFound,
    }
}

fn broken_rule(invalid: &Invalid) -> Code {
    match invalid.field {
        Field::Namespace | Field::Topic => Code::IllegalTopic,
        Field::Group => Code::IllegalConsumerGroup,
        Field::ClientId if invalid.problem == Problem::Blank => Code::ClientIdRequired,
        Field::ClientId | Field::TraceContext | Field::BornHost | Field::Priority => Code::BadRequest,
        Field::MessageId => Code::IllegalMessageId,
        Field::Tag => Code::IllegalMessageTag,
        Field::Key => Code::IllegalMessageKey,
        Field::MessageGroup => Code::IllegalMessageGroup,
        Field::PropertyKey | Field::PropertyValue => Code::IllegalMessagePropertyKey,
        Field::Properties => Code::MessagePropertiesTooLarge,
        Field::LiteTopic => Code::IllegalLiteTopic,
        Field::DeliveryTime => Code::IllegalDeliveryTime,
        Field::Body if invalid.problem == Problem::Blank => Code::MessageBodyEmpty,
        Field::Body => Code::MessageBodyTooLarge,
    }
}

fn failed(error: &BrokerError) -> Code {
    match error {
        // Nothing was proposed, another try may pass: what clients repeat elsewhere.
        BrokerError::NotLeader { .. } | BrokerError::NoQuorum | BrokerError::Stopped => Code::HaNotAvailable,
        BrokerError::Busy { .. } | BrokerError::SequenceTooFar => Code::TooManyRequests,
        BrokerError::TooLarge { .. } => Code::PayloadTooLarge,
        BrokerError::Unknown { .. } | BrokerError::OlderEpoch | BrokerError::BelowFloor => Code::ProxyTimeout,
        BrokerError::UnknownTopic { .. } => Code::TopicNotFound,
        BrokerError::UnknownGroup { .. } => Code::ConsumerGroupNotFound,
        BrokerError::Exists { .. } => Code::PreconditionFailed,
        BrokerError::InvalidHandle { .. } => Code::InvalidReceiptHandle,
        BrokerError::NotWritable { .. } | BrokerError::NotReadable { .. } => Code::Forbidden,
        BrokerError::Unsupported { .. } => Code::NotImplemented,
        BrokerError::Invalid { .. } => Code::BadRequest,
        BrokerError::InvalidFilter { .. } => Code::IllegalFilterExpression,
        BrokerError::Storage(_) => Code::InternalError,
        BrokerError::Internal { .. } => Code::InternalServerError,
    }
}

/// The value of `x-mq-reason` for an error that needs one.
pub fn reason(error: &CallError) -> Option<&'static str> {
    match error {
        CallError::Failed(BrokerError::BelowFloor) => Some(headers::REASON_BELOW_FLOOR),
        CallError::Failed(BrokerError::OlderEpoch) => Some(headers::REASON_OLDER_EPOCH),
        _ => None,
    }
}

/// The value of `x-mq-reason` for several failures: the one that all of them have.
pub fn common_reason<'a>(failures: impl IntoIterator<Item = &'a CallError>) -> Option<&'static str> {
    let mut reasons = failures.into_iter().map(reason);
    let first = reasons.next()??;
    reasons.all(|other| other == Some(first)).then_some(first)
}

/// True when the call was refused before anything was proposed, so that a node may repeat it.
pub fn not_proposed(code: i32) -> bool {
    code == Code::HaNotAvailable as i32
}

/// True when the call may have been done or not.
pub fn unknown(code: i32) -> bool {
    code == Code::ProxyTimeout as i32
}

/// The common status of several results: their code when they agree, else `MULTIPLE_RESULTS`.
pub fn common<'a>(statuses: impl IntoIterator<Item = &'a Status>) -> Status {
    let mut statuses = statuses.into_iter();
    let Some(first) = statuses.next() else { return ok() };
    if statuses.all(|status| status.code == first.code) {
        return first.clone();
    }
    Status { code: Code::MultipleResults as i32, message: "see the status of each entry".into() }
}

/// The Rust crate 5.0.0 panics on codes that were added after it; it gets the class's general code instead.
pub fn for_rust_5_0_0(code: i32) -> i32 {
    let known = match Code::try_from(code) {
        Ok(
            Code::MessageBodyEmpty
            | Code::IllegalOffset
            | Code::IllegalLiteTopic
            | Code::InvalidClientProperties,
        ) => Code::BadRequest,
        Ok(Code::OffsetNotFound) => Code::NotFound,
        Ok(Code::LiteTopicQuotaExceeded | Code::LiteSubscriptionQuotaExceeded) => Code::TooManyRequests,
        _ => return code,
    };
    known as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certain_and_unknown_outcomes_have_different_codes() {
        let unknown = CallError::from(BrokerError::Unknown { reason: "x" });
        assert_eq!(code(&unknown) as i32, 50_400);
        let not_proposed = CallError::from(BrokerError::NotLeader { leader: None });
        assert_eq!(code(&not_proposed) as i32, 50_002);
        assert!(super::not_proposed(50_002) && !super::not_proposed(50_400));
        assert_eq!(reason(&CallError::from(BrokerError::BelowFloor)), Some("below-floor"));
    }

    #[test]
    fn several_failures_have_a_reason_when_they_agree() {
        let [below, older] = [BrokerError::BelowFloor, BrokerError::OlderEpoch].map(CallError::from);
        let other = CallError::from(BrokerError::NoQuorum);
        assert_eq!(common_reason([&below, &below]), Some("below-floor"));
        for mixed in [vec![&below, &older], vec![&below, &other], vec![&other, &below], vec![&other], vec![]]
        {
            assert_eq!(common_reason(mixed), None);
        }
    }

    #[test]
    fn several_results_have_a_common_status() {
        let [good, bad] = [ok(), of(&Refusal::Handle("x").into())];
        assert_eq!(common([&good, &good]).code, 20_000);
        assert_eq!(common([&bad, &bad]).code, 40_013);
        assert_eq!(common([&good, &bad]).code, 30_000);
    }

    #[test]
    fn the_first_rust_client_gets_codes_that_it_knows() {
        assert_eq!(for_rust_5_0_0(41_302), 40_000);
        assert_eq!(for_rust_5_0_0(40_404), 40_400);
        assert_eq!(for_rust_5_0_0(42_902), 42_900);
        assert_eq!(for_rust_5_0_0(41_301), 41_301);
    }
}
