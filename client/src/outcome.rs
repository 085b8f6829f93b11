//! What an answer says about a call: done, certainly not done, or unknown.

use mq_protocol::headers;
use tonic::metadata::MetadataMap;

use crate::error::Cause;
use crate::group::Leader;

/// Codes of `apache.rocketmq.v2.Code` that a client acts on.
pub(crate) mod code {
    pub(crate) const OK: i32 = 20_000;
    pub(crate) const MULTIPLE_RESULTS: i32 = 30_000;
    pub(crate) const INVALID_RECEIPT_HANDLE: i32 = 40_013;
    pub(crate) const TOPIC_NOT_FOUND: i32 = 40_402;
    pub(crate) const MESSAGE_NOT_FOUND: i32 = 40_401;
    pub(crate) const REQUEST_TIMEOUT: i32 = 40_800;
    pub(crate) const TOO_MANY_REQUESTS: i32 = 42_900;
    pub(crate) const NOT_LEADER: i32 = 50_002;
}

/// What a code means for a call that would have changed something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Done.
    Done,
    /// Nothing was proposed: this node does not lead. Ask the leader.
    NotLeader,
    /// Nothing was proposed: too much to do. Ask again later.
    Busy,
    /// Nothing was proposed, and it will be refused again.
    Refused,
    /// It may have been done. Repeat it under the same identity only.
    Unknown,
}

impl Verdict {
    /// The table of what is certain: 50002, 501xx, 505xx, 42900, and 4xxxx but 40800 were never proposed.
    /// 40800 is not sent by a broker of this project; a server between may say it of a call that was done.
    pub(crate) fn of(code: i32) -> Self {
        match code {
            code::OK => Self::Done,
            code::NOT_LEADER => Self::NotLeader,
            code::TOO_MANY_REQUESTS => Self::Busy,
            code::REQUEST_TIMEOUT => Self::Unknown,
            40_000..=49_999 | 50_100..=50_199 | 50_500..=50_599 => Self::Refused,
            _ => Self::Unknown,
        }
    }
}

/// The refusal is about a message's own content, so that its neighbours in the request may pass without it.
pub(crate) fn is_about_content(code: i32) -> bool {
    matches!(code, 40_000..=40_099 | 41_300..=41_399 | 43_100..=43_199)
}

/// What comes beside the body of an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Beside {
    /// Who leads, when the node that answered does not.
    pub(crate) leader: Option<Leader>,
    /// Why, for machines.
    pub(crate) reason: Option<String>,
}

impl Beside {
    pub(crate) fn read(metadata: &MetadataMap) -> Self {
        let text = |key: &'static str| metadata.get(key).and_then(|value| value.to_str().ok());
        Self {
            leader: text(headers::LEADER).and_then(Leader::parse),
            reason: text(headers::REASON).map(str::to_owned),
        }
    }
}

/// Code and text of a status in an answer; a missing one is an answer that says nothing.
pub(crate) fn status_of(status: Option<&mq_protocol::v2::Status>) -> (i32, String) {
    status.map_or((0, "answer without a status".to_owned()), |status| (status.code, status.message.clone()))
}

pub(crate) fn cause(code: i32, message: &str, beside: &Beside) -> Cause {
    Cause::Status { code, message: message.to_owned(), reason: beside.reason.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_codes_of_the_list_are_certain() {
        let certain =
            [40_000, 40_014, 40_100, 40_300, 40_402, 41_301, 42_800, 43_101, 50_100, 50_500, 50_501];
        for code in certain {
            assert_eq!(Verdict::of(code), Verdict::Refused, "{code}");
        }
        assert_eq!(Verdict::of(50_002), Verdict::NotLeader);
        assert_eq!(Verdict::of(42_900), Verdict::Busy);
        assert_eq!(Verdict::of(20_000), Verdict::Done);
        for code in [0, -1, 30_000, 40_800, 50_000, 50_001, 50_400, 50_401, 50_402, 60_000, 99_999] {
            assert_eq!(Verdict::of(code), Verdict::Unknown, "{code}");
        }
    }
}
