//! What the headers of a call say: how much time it has, and whether a node passed it on.

use std::time::{Duration, Instant};

use mq_protocol::headers;
use tonic::metadata::MetadataMap;

use crate::error::NameError;

/// A call without a deadline gets this much time.
const DEFAULT_TIME: Duration = Duration::from_secs(3);
const TIME_MAX: Duration = Duration::from_secs(30);
/// The answer leaves this long before the deadline.
const ANSWER_MARGIN: Duration = Duration::from_millis(20);

/// One call.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Until when the answer has to be on its way.
    pub answer_by: Instant,
    /// Another name server passed it on; it stays here.
    pub forwarded: bool,
}

impl Call {
    /// Reads the headers. A deadline that has passed already is an error.
    pub fn of(headers: &MetadataMap) -> Result<Self, NameError> {
        let time = match headers.get("grpc-timeout").map(|value| value.to_str().ok().and_then(parse_timeout))
        {
            None => DEFAULT_TIME,
            Some(None) => return Err(NameError::BadRequest("grpc-timeout cannot be read".to_owned())),
            Some(Some(time)) if time.is_zero() => return Err(NameError::Expired),
            Some(Some(time)) => time.min(TIME_MAX),
        };
        let answer_by = Instant::now() + time.saturating_sub(ANSWER_MARGIN.min(time / 4));
        Ok(Self { answer_by, forwarded: headers.contains_key(headers::FORWARDED) })
    }

    /// The time that is left.
    #[must_use]
    pub fn left(&self) -> Duration {
        self.answer_by.saturating_duration_since(Instant::now())
    }
}

/// `1S`, `100m`: up to eight digits and a unit.
fn parse_timeout(text: &str) -> Option<Duration> {
    let unit = text.chars().next_back()?;
    let digits = &text[..text.len() - unit.len_utf8()];
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number = digits.parse().ok()?;
    match unit {
        'H' => Some(Duration::from_secs(3_600 * number)),
        'M' => Some(Duration::from_secs(60 * number)),
        'S' => Some(Duration::from_secs(number)),
        'm' => Some(Duration::from_millis(number)),
        'u' => Some(Duration::from_micros(number)),
        'n' => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(timeout: &str) -> MetadataMap {
        let mut headers = MetadataMap::new();
        headers.insert("grpc-timeout", timeout.parse().expect("ascii"));
        headers
    }

    #[test]
    fn timeouts_are_read_and_bounded() {
        for (text, time) in
            [("1S", 1_000), ("250m", 250), ("2M", 120_000), ("7000u", 7), ("00000001H", 3_600_000)]
        {
            assert_eq!(parse_timeout(text), Some(Duration::from_millis(time)), "{text}");
        }
        for text in ["", "S", "1", "1x", "-1S", "123456789S", "1.5S"] {
            assert_eq!(parse_timeout(text), None, "{text}");
        }
        let call = Call::of(&headers("99999999H")).expect("bounded");
        assert!(call.left() <= TIME_MAX);
        assert!(!call.forwarded);
    }

    #[test]
    fn an_expired_deadline_is_refused() {
        assert_eq!(Call::of(&headers("0m")).err(), Some(NameError::Expired));
        assert!(matches!(Call::of(&headers("soon")), Err(NameError::BadRequest(_))));
    }
}
