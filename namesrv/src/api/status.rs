//! Errors to wire codes, here and nowhere else. The match is exhaustive: a new variant has to be given a code.

use mq_protocol::cluster::AdminResult;
use mq_protocol::v2::{Code, Status};

use crate::error::NameError;

/// The code of a call that was not done.
pub fn code(error: &NameError) -> Code {
    match error {
        NameError::Expired => Code::RequestTimeout,
        // Nothing was changed, another name server or another moment may do.
        NameError::NoLeader
        | NameError::NoQuorum
        | NameError::Stopped
        | NameError::CutOff { .. }
        | NameError::Behind { .. } => Code::HaNotAvailable,
        NameError::OtherRevision { .. } => Code::PreconditionFailed,
        NameError::Full { .. } => Code::Forbidden,
        NameError::Busy { .. } => Code::TooManyRequests,
        NameError::TooLarge { .. } => Code::PayloadTooLarge,
        NameError::Unknown(_) => Code::ProxyTimeout,
        NameError::Invalid(_) => Code::IllegalTopic,
        NameError::BadRequest(_) => Code::BadRequest,
        NameError::Refused(_) => Code::Forbidden,
        NameError::UnknownTopic(_) => Code::TopicNotFound,
        NameError::NotFound(_) => Code::NotFound,
    }
}

/// The status of a call of the RocketMQ service.
pub fn of(error: &NameError) -> Status {
    Status { code: code(error) as i32, message: error.to_string() }
}

/// The status of a call of the RocketMQ service that was done.
pub fn ok() -> Status {
    Status { code: Code::Ok as i32, message: "OK".to_owned() }
}

/// The result of a call of the registry: what was changed, or why not.
pub fn result(outcome: &Result<bool, NameError>) -> AdminResult {
    match outcome {
        Ok(changed) => AdminResult { code: Code::Ok as i32, message: "OK".to_owned(), changed: *changed },
        Err(error) => AdminResult { code: code(error) as i32, message: error.to_string(), changed: false },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_changed_nothing_and_what_is_unknown_have_different_codes() {
        assert_eq!(code(&NameError::NoLeader) as i32, 50_002);
        assert_eq!(code(&NameError::CutOff { age_s: 31 }) as i32, 50_002, "clients ask another one");
        assert_eq!(code(&NameError::Unknown("x")) as i32, 50_400);
        let result = result(&Err(NameError::UnknownTopic("t".into())));
        assert_eq!((result.code, result.changed), (40_402, false));
    }
}
