//! Which messages a receive wants: by tag.

use mq_protocol::message::properties::{self, name};
use mq_protocol::message::tag::tag_hash;

use crate::error::BrokerError;

/// Most tags of one expression.
const MAX_TAGS: usize = 1_024;

/// The messages that a receive takes; others are passed over for its group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Wanted tags with their hashes; `None` = all messages, tagged or not.
    tags: Option<Vec<(i64, String)>>,
}

impl Filter {
    /// All messages.
    #[must_use]
    pub fn all() -> Self {
        Self::default()
    }

    /// From a tag expression: `*` or nothing = all, `a || b` = any of them.
    ///
    /// # Errors
    /// An expression without a tag, or with more than 1,024.
    pub fn tags(expression: &str) -> Result<Self, BrokerError> {
        let expression = expression.trim();
        if expression.is_empty() || expression == "*" {
            return Ok(Self::all());
        }
        let tags: Vec<_> = expression
            .split("||")
            .map(str::trim)
            .filter(|tag| !tag.is_empty())
            .map(|tag| (tag_hash(Some(tag)), tag.to_owned()))
            .collect();
        if tags.is_empty() {
            return Err(BrokerError::InvalidFilter { detail: format!("{expression:?} names no tag") });
        }
        if tags.len() > MAX_TAGS {
            let detail = format!("{} tags, the limit is {MAX_TAGS}", tags.len());
            return Err(BrokerError::InvalidFilter { detail });
        }
        // `*` among others still means everything.
        let all = tags.iter().any(|(_, tag)| tag == "*");
        Ok(Self { tags: (!all).then_some(tags) })
    }

    pub(crate) fn is_all(&self) -> bool {
        self.tags.is_none()
    }

    /// False when no wanted tag has this hash; true decides nothing yet, for tags may share a hash.
    pub(crate) fn may_match(&self, hash: i64) -> bool {
        self.tags.as_ref().is_none_or(|tags| tags.iter().any(|(wanted, _)| *wanted == hash))
    }

    /// Whether a message with these properties is wanted.
    pub(crate) fn matches(&self, encoded_properties: &[u8]) -> bool {
        let Some(tags) = &self.tags else { return true };
        let tag = properties::find(encoded_properties, name::TAGS);
        tag.is_some_and(|tag| tags.iter().any(|(_, wanted)| wanted == tag))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tagged(tag: &str) -> Vec<u8> {
        format!("KEYS\u{1}k\u{2}TAGS\u{1}{tag}\u{2}").into_bytes()
    }

    #[test]
    fn expressions_name_all_or_some_tags() {
        for all in ["", "*", "  * ", "a || *"] {
            assert!(Filter::tags(all).expect(all).is_all(), "{all:?}");
        }
        let some = Filter::tags(" a||b ||").expect("two tags");
        assert!(some.matches(&tagged("a")) && some.matches(&tagged("b")));
        assert!(!some.matches(&tagged("c")) && !some.matches(b""), "no tag matches only `*`");
        assert!(some.may_match(tag_hash(Some("b"))) && !some.may_match(0));
        Filter::tags("||").expect_err("names nothing");
        Filter::tags(&"t||".repeat(1_025)).expect_err("too many");
    }

    #[test]
    fn tags_of_equal_hash_are_told_apart() {
        // "Aa" and "BB" have the same Java hash.
        let filter = Filter::tags("Aa").expect("one tag");
        assert!(filter.may_match(tag_hash(Some("BB"))));
        assert!(!filter.matches(&tagged("BB")));
        assert!(filter.matches(&tagged("Aa")));
    }
}
