//! Identity of a send of a client that numbers nothing itself.
//!
//! ```text
//! first 16 bytes of SHA-256 over
//!   client id, message id, namespace, topic     each: length u32, bytes
//!   topic id u32 | incarnation u32 | body length u32 | crc32c of the body as sent u32      (all little-endian)
//! ```
//! A false repeat would be a lost message, so the key covers the content, and the topic's incarnation: ids of
//! clients in containers collide, and a topic that was made again has never seen the message.

use sha2::{Digest, Sha256};

/// What identifies a send.
#[derive(Debug, Clone, Copy)]
pub struct SendIdentity<'a> {
    /// `x-mq-client-id` of the call.
    pub client_id: &'a str,
    /// Id that the client gave the message.
    pub message_id: &'a str,
    /// Namespace of the topic.
    pub namespace: &'a str,
    /// Name of the topic.
    pub topic: &'a str,
    /// Number of the topic.
    pub topic_id: u32,
    /// Life of the topic.
    pub incarnation: u32,
    /// Body as sent.
    pub body: &'a [u8],
}

/// The send key. Made once, by the leader that proposes the message; it is stored in the trailer.
#[must_use]
pub fn send_key(send: &SendIdentity<'_>) -> [u8; 16] {
    let mut hash = Sha256::new();
    for text in [send.client_id, send.message_id, send.namespace, send.topic] {
        hash.update(length(text.as_bytes()));
        hash.update(text);
    }
    hash.update(send.topic_id.to_le_bytes());
    hash.update(send.incarnation.to_le_bytes());
    hash.update(length(send.body));
    hash.update(crc32c::crc32c(send.body).to_le_bytes());
    let digest: [u8; 32] = hash.finalize().into();
    let mut key = [0; 16];
    key.copy_from_slice(&digest[..16]);
    key
}

/// Nothing that arrives in one call is as long as 4 GiB.
fn length(bytes: &[u8]) -> [u8; 4] {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEND: SendIdentity<'static> = SendIdentity {
        client_id: "host@1@0@abc",
        message_id: "01AABBCCDDEEFF00010000000200000003",
        namespace: "",
        topic: "orders",
        topic_id: 7,
        incarnation: 1,
        body: b"hello",
    };

    #[test]
    fn bytes_never_change() {
        // Computed by an independent program from the drawing above.
        let expected = "5e7fa58bbae4f7889151df2ef910c4b8";
        assert_eq!(super::super::digest::upper_hex(&send_key(&SEND)).to_lowercase(), expected);
    }

    #[test]
    fn every_part_counts() {
        let others = [
            SendIdentity { client_id: "host@1@0@abd", ..SEND },
            SendIdentity { message_id: "01AABBCCDDEEFF00010000000200000004", ..SEND },
            SendIdentity { namespace: "n", ..SEND },
            SendIdentity { topic: "order", ..SEND },
            SendIdentity { topic_id: 8, ..SEND },
            SendIdentity { incarnation: 2, ..SEND },
            SendIdentity { body: b"hellp", ..SEND },
            SendIdentity { body: b"", ..SEND },
            // The border between two texts is part of the key.
            SendIdentity { namespace: "or", topic: "ders", ..SEND },
        ];
        for other in others {
            assert_ne!(send_key(&other), send_key(&SEND), "{other:?}");
        }
    }
}
