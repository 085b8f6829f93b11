//! Every answer carries a documented code (`unexpected-response`).

use super::Finding;
use crate::history::Call;

/// Codes are numbers of the RocketMQ protocol, or the suite's own names for what broke below it.
pub fn check(calls: &[Call]) -> Vec<Finding> {
    calls
        .iter()
        .filter_map(|call| call.cause.as_ref().map(|cause| (call, cause)))
        .filter(|(_, cause)| cause.code.parse::<i32>().is_ok_and(|code| !documented(code)))
        .map(|(call, cause)| {
            let text = format!("{} was answered with {} {}", call.values.function(), cause.code, cause.msg);
            Finding::new("unexpected-response", text, [call.invoked])
        })
        .collect()
}

/// What `Code` of the protocol names, without 0 and without what only clients use.
pub fn documented(code: i32) -> bool {
    use mq_protocol::v2::Code;
    code != 0 && code < 60_000 && Code::try_from(code).is_ok()
}

#[cfg(test)]
mod tests {
    use super::documented;

    #[test]
    fn only_codes_of_the_protocol_are_documented() {
        for code in [20_000, 40_013, 40_401, 42_900, 50_002, 50_400] {
            assert!(documented(code), "{code}");
        }
        for code in [0, 1, 20_001, 50_403, 60_000] {
            assert!(!documented(code), "{code}");
        }
    }
}
