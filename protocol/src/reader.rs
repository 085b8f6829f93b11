//! Reads fields from the front of a byte slice.

use crate::FormatError;

/// What is left to read.
pub struct Reader<'a> {
    rest: &'a [u8],
}

macro_rules! integers {
    ($($name:ident: $type:ty, $from:ident;)*) => {
        $(pub fn $name(&mut self, what: &'static str) -> Result<$type, FormatError> {
            self.array(what).map(<$type>::$from)
        })*
    };
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub fn take(&mut self, count: usize, what: &'static str) -> Result<&'a [u8], FormatError> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(FormatError::Truncated {
            what,
            need: count,
            have: self.rest.len(),
        })?;
        self.rest = rest;
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], FormatError> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(FormatError::Truncated {
            what,
            need: N,
            have: self.rest.len(),
        })?;
        self.rest = rest;
        Ok(*taken)
    }

    pub fn text(&mut self, count: usize, what: &'static str) -> Result<&'a str, FormatError> {
        std::str::from_utf8(self.take(count, what)?).map_err(|_| FormatError::Text { what })
    }

    /// Nothing may be left.
    pub fn end(self, what: &'static str) -> Result<(), FormatError> {
        match self.rest.len() {
            0 => Ok(()),
            count => Err(FormatError::LeftOver { what, count }),
        }
    }

    integers! {
        u8: u8, from_be_bytes;
        u16_be: u16, from_be_bytes;
        u32_be: u32, from_be_bytes;
        u64_be: u64, from_be_bytes;
        i32_be: i32, from_be_bytes;
        i64_be: i64, from_be_bytes;
        u16_le: u16, from_le_bytes;
        u32_le: u32, from_le_bytes;
        u64_le: u64, from_le_bytes;
        i64_le: i64, from_le_bytes;
    }
}
