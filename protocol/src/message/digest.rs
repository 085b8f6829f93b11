//! Checksums of a message body.

use md5::{Digest, Md5};

/// MD5 of a body as 32 upper-case hex digits: the one form that all clients understand.
#[must_use]
pub fn md5_upper_hex(body: &[u8]) -> String {
    upper_hex(&Md5::digest(body))
}

/// CRC-32 of a body as the record holds it: the sign bit cleared.
#[must_use]
pub fn body_crc(body: &[u8]) -> u32 {
    crc32fast::hash(body) & 0x7FFF_FFFF
}

pub(crate) fn upper_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    bytes
        .iter()
        .flat_map(|byte| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]])
        .map(char::from)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn md5_is_upper_case_hex() {
        assert_eq!(md5_upper_hex(b""), "D41D8CD98F00B204E9800998ECF8427E");
        assert_eq!(md5_upper_hex(b"abc"), "900150983CD24FB0D6963F7D28E17F72");
    }

    #[test]
    fn body_crc_has_no_sign_bit() {
        assert_eq!(body_crc(b"123456789"), 0xCBF4_3926 & 0x7FFF_FFFF);
        assert_eq!(body_crc(b""), 0);
    }
}
