//! Times of the protocol and milliseconds.

use std::time::Duration;

use prost_types::Timestamp;

/// 0001-01-01 and 9999-12-31, the ends of what a protobuf timestamp may say, in Unix seconds.
const SECONDS: std::ops::RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;

/// Unix milliseconds of a timestamp; none if it is not a valid one.
#[must_use]
pub fn timestamp_ms(timestamp: &Timestamp) -> Option<i64> {
    if !SECONDS.contains(&timestamp.seconds) || !(0..1_000_000_000).contains(&timestamp.nanos) {
        return None;
    }
    Some(timestamp.seconds * 1_000 + i64::from(timestamp.nanos / 1_000_000))
}

/// Timestamp of Unix milliseconds.
#[must_use]
pub fn timestamp(ms: i64) -> Timestamp {
    let nanos = i32::try_from(ms.rem_euclid(1_000)).unwrap_or(0) * 1_000_000;
    Timestamp { seconds: ms.div_euclid(1_000), nanos }
}

/// Duration of the protocol; none if it is negative or malformed.
#[must_use]
pub fn duration(value: &prost_types::Duration) -> Option<Duration> {
    let seconds = u64::try_from(value.seconds).ok()?;
    let nanos = u32::try_from(value.nanos).ok().filter(|nanos| *nanos < 1_000_000_000)?;
    Some(Duration::new(seconds, nanos))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn invalid_times_are_none() {
        assert_eq!(
            timestamp_ms(&Timestamp { seconds: 1_700_000_000_000, nanos: 0 }),
            None,
            "ms in the seconds"
        );
        assert_eq!(timestamp_ms(&Timestamp { seconds: 0, nanos: 1_000_000_000 }), None);
        assert_eq!(timestamp_ms(&Timestamp { seconds: 0, nanos: -1 }), None);
        assert_eq!(duration(&prost_types::Duration { seconds: -1, nanos: 0 }), None);
        assert_eq!(duration(&prost_types::Duration { seconds: 0, nanos: -1 }), None);
        assert_eq!(timestamp(-1), Timestamp { seconds: -1, nanos: 999_000_000 });
    }

    proptest! {
        #[test]
        fn milliseconds_round_trip(ms in -62_135_596_800_000i64..253_402_300_800_000) {
            prop_assert_eq!(timestamp_ms(&timestamp(ms)), Some(ms));
        }

        #[test]
        fn any_number_gets_an_answer(seconds in any::<i64>(), nanos in any::<i32>()) {
            let _ = timestamp(seconds);
            let _ = timestamp_ms(&Timestamp { seconds, nanos });
            let _ = duration(&prost_types::Duration { seconds, nanos });
        }
    }
}
