//! Tag hashes of ConsumeQueue units.

/// Java's `String.hashCode`: over UTF-16 units, wrapping.
#[must_use]
pub fn java_hash(text: &str) -> i32 {
    text.encode_utf16().fold(0i32, |hash, unit| hash.wrapping_mul(31).wrapping_add(i32::from(unit)))
}

/// Tag hash of a unit: the sign-extended Java hash; 0 for a message without tag.
///
/// Different tags may share a hash: a reader that matched the hash still compares the tag itself.
#[must_use]
pub fn tag_hash(tag: Option<&str>) -> i64 {
    tag.map_or(0, |tag| i64::from(java_hash(tag)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_as_java_does() {
        assert_eq!(java_hash(""), 0);
        assert_eq!(java_hash("hello"), 99_162_322);
        assert_eq!(java_hash("TagA"), 2_598_919);
        assert_eq!(java_hash("polygenelubricants"), i32::MIN);
        // One code point beyond the basic plane is two units.
        assert_eq!(java_hash("\u{1F600}"), 0xD83D * 31 + 0xDE00);
    }

    #[test]
    fn hash_is_sign_extended_and_zero_without_tag() {
        assert_eq!(tag_hash(Some("polygenelubricants")), -2_147_483_648);
        assert_eq!(tag_hash(None), 0);
    }
}
