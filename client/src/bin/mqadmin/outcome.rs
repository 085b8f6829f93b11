//! How a command ends: exit codes that scripts can rely on.

use std::fmt;

use mq_client::admin::AdminError;
use mq_client::{ConfigError, NotStored, ReceiveError, SendError};

pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// Why a command did not do what was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    kind: Kind,
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Failed,
    WrongUse,
    NotFound,
    Unavailable,
    Refused,
    Unhealthy,
}

impl Failure {
    pub(crate) fn failed(text: impl fmt::Display) -> Self {
        Self { kind: Kind::Failed, text: text.to_string() }
    }

    pub(crate) fn wrong_use(text: impl fmt::Display) -> Self {
        Self { kind: Kind::WrongUse, text: text.to_string() }
    }

    pub(crate) fn not_found(text: impl fmt::Display) -> Self {
        Self { kind: Kind::NotFound, text: text.to_string() }
    }

    pub(crate) fn unavailable(text: impl fmt::Display) -> Self {
        Self { kind: Kind::Unavailable, text: text.to_string() }
    }

    pub(crate) fn unhealthy(text: impl fmt::Display) -> Self {
        Self { kind: Kind::Unhealthy, text: text.to_string() }
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match self.kind {
            Kind::Failed => 1,
            Kind::WrongUse => 2,
            Kind::NotFound => 3,
            Kind::Unavailable => 4,
            Kind::Refused => 5,
            Kind::Unhealthy => 10,
        }
    }

    /// The word before its text.
    pub(crate) fn heading(&self) -> &'static str {
        if self.kind == Kind::Unhealthy { "unhealthy" } else { "error" }
    }

    fn by_code(code: Option<i32>, text: &impl fmt::Display) -> Self {
        let kind = match code {
            Some(40_400..=40_499) => Kind::NotFound,
            Some(40_100..=40_399) => Kind::Refused,
            _ => Kind::Failed,
        };
        Self { kind, text: text.to_string() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::wrong_use(error)
    }
}

impl From<AdminError> for Failure {
    fn from(error: AdminError) -> Self {
        let kind = match &error {
            AdminError::Invalid(_) => Kind::WrongUse,
            AdminError::NotFound(_) => Kind::NotFound,
            AdminError::Refused(_) => Kind::Refused,
            AdminError::Unavailable(_) => Kind::Unavailable,
            AdminError::Failed(_) => Kind::Failed,
        };
        Self { kind, text: error.to_string() }
    }
}

impl From<SendError> for Failure {
    fn from(error: SendError) -> Self {
        match &error {
            SendError::NotStored { why: NotStored::Invalid(_), .. } => Self::wrong_use(error),
            SendError::NotStored { why: NotStored::Unavailable(_), .. } => Self::unavailable(error),
            SendError::NotStored { why: NotStored::Refused(cause), .. } => {
                Self::by_code(cause.code(), &error)
            }
            SendError::Unknown { .. } => Self::failed(error),
        }
    }
}

impl From<ReceiveError> for Failure {
    fn from(error: ReceiveError) -> Self {
        match &error {
            ReceiveError::Invalid(_) => Self::wrong_use(error),
            ReceiveError::Refused(cause) => Self::by_code(cause.code(), &error),
            ReceiveError::Unavailable(_) => Self::unavailable(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use mq_client::Cause;

    use super::*;

    fn said(code: i32) -> Cause {
        Cause::Status { code, message: String::new(), reason: None }
    }

    #[test]
    fn exit_codes_are_those_of_the_documentation() {
        assert_eq!(Failure::failed("").exit_code(), 1);
        assert_eq!(Failure::from(ConfigError::NoAddress).exit_code(), 2);
        assert_eq!(Failure::from(AdminError::NotFound(said(40_402))).exit_code(), 3);
        assert_eq!(Failure::from(AdminError::Unavailable(Cause::Closed)).exit_code(), 4);
        assert_eq!(Failure::from(AdminError::Refused(said(40_300))).exit_code(), 5);
        assert_eq!(Failure::unhealthy("").exit_code(), 10);
        assert_eq!(Failure::from(ReceiveError::Refused(said(40_403))).exit_code(), 3);
        let unknown = SendError::Unknown { message_id: String::new(), cause: said(50_400) };
        assert_eq!(Failure::from(unknown).exit_code(), 1);
    }
}
