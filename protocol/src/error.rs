//! What can be wrong with bytes.

/// Bytes do not have the layout that was expected of them, or a value does not fit into it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// The bytes end before the field does.
    #[error("{what}: {need} bytes needed, {have} there")]
    Truncated {
        /// The field.
        what: &'static str,
        /// Its length.
        need: usize,
        /// What is left.
        have: usize,
    },
    /// Bytes are left over behind the last field.
    #[error("{what}: {count} bytes left over")]
    LeftOver {
        /// The structure.
        what: &'static str,
        /// How many.
        count: usize,
    },
    /// A field has a value that it cannot have.
    #[error("{what}: {found} found, {expected} expected")]
    Value {
        /// The field.
        what: &'static str,
        /// The value there.
        found: u64,
        /// What may stand there.
        expected: &'static str,
    },
    /// A text is not UTF-8.
    #[error("{what}: not UTF-8")]
    Text {
        /// The field.
        what: &'static str,
    },
    /// A part is longer than its length field or its limit allows.
    #[error("{what}: {value} bytes, at most {limit} allowed")]
    TooLong {
        /// The part.
        what: &'static str,
        /// Its length.
        value: usize,
        /// The limit.
        limit: usize,
    },
    /// A property key or value holds one of the two separators.
    #[error("property `{key}` contains a separator character")]
    Separator {
        /// Key of the property.
        key: String,
    },
    /// A checksum does not fit.
    #[error("{what}: checksum {found:08x}, {expected:08x} expected")]
    Checksum {
        /// What it covers.
        what: &'static str,
        /// As stored.
        found: u32,
        /// As computed.
        expected: u32,
    },
}
