//! Message ids as text.

use std::net::SocketAddr;

use super::digest::upper_hex;

/// Offset message id: where a record lies, as the classic protocol prints it.
///
/// ```text
/// store host address 4 or 16 | port 4 | physical offset 8      (big-endian; 32 or 56 hex digits, upper case)
/// ```
#[must_use]
pub fn offset_message_id(store_host: SocketAddr, physical_offset: u64) -> String {
    let mut bytes = Vec::with_capacity(28);
    super::record::put_host(&mut bytes, store_host);
    bytes.extend_from_slice(&physical_offset.to_be_bytes());
    upper_hex(&bytes)
}

/// Id that a RocketMQ 5 client gives to a message it sends: 34 hex digits, upper case.
///
/// ```text
/// version 1 (= 1) | MAC address 6 | process id 2 | seconds since 2021-01-01T00:00:00Z 4 | sequence 4
/// ```
#[must_use]
pub fn client_message_id(mac: [u8; 6], process: u16, seconds: u32, sequence: u32) -> String {
    let mut bytes = Vec::with_capacity(17);
    bytes.push(1);
    bytes.extend_from_slice(&mac);
    bytes.extend_from_slice(&process.to_be_bytes());
    bytes.extend_from_slice(&seconds.to_be_bytes());
    bytes.extend_from_slice(&sequence.to_be_bytes());
    upper_hex(&bytes)
}

/// 2021-01-01T00:00:00Z, from which [`client_message_id`] counts, in Unix seconds.
pub const CLIENT_ID_EPOCH_S: u64 = 1_609_459_200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offset_id_has_32_or_56_digits() {
        let four = offset_message_id("10.0.0.1:10911".parse().expect("an address"), 0x1234);
        assert_eq!(four, "0A00000100002A9F0000000000001234");
        let six = offset_message_id("[::1]:10911".parse().expect("an address"), 1);
        assert_eq!(six, "0000000000000000000000000000000100002A9F0000000000000001");
    }

    #[test]
    fn client_id_has_34_digits() {
        let id = client_message_id([0xAA, 0xBB, 0xCC, 0xDD, 0xEE, 0xFF], 1, 2, 3);
        assert_eq!(id, "01AABBCCDDEEFF00010000000200000003");
        assert_eq!(id.len(), 34);
    }
}
