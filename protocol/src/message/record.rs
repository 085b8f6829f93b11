//! A message as RocketMQ lays it out.
//!
//! ```text
//!   0  total size 4                  whole record, this field included
//!   4  magic 4                       0xDAA320A7, or 0xDAA320AB when the topic's length takes 2 bytes
//!   8  body CRC 4                    CRC-32 of the body, sign bit cleared
//!  12  queue id 4
//!  16  flag 4                        free for the application
//!  20  queue offset 8                stored as 0, filled in on read
//!  28  physical offset 8             stored as 0, filled in on read
//!  36  system flag 4
//!  40  born timestamp 8              producer's clock, ms
//!  48  born host 4 or 16, port 4     by system flag bit 4
//!   +  store timestamp 8             stored as 0, filled in on read
//!   +  store host 4 or 16, port 4    by system flag bit 5
//!   +  reconsume times 4
//!   +  prepared transaction offset 8
//!   +  body length 4, body
//!   +  topic length 1 or 2, topic
//!   +  properties length 2, properties
//! ```
//! Big-endian. With two IPv4 hosts and a short topic the fixed part is 91 bytes. Always: total size = sum of the
//! parts; the magic says how long the topic's length is, the system flag how long the hosts are; the three
//! position fields lie at places that only the system flag decides.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::digest::body_crc;
use crate::FormatError;
use crate::reader::Reader;

/// Magic of a record whose topic length takes one byte.
pub const MAGIC_V1: u32 = 0xDAA3_20A7;
/// Magic of a record whose topic length takes two bytes.
pub const MAGIC_V2: u32 = 0xDAA3_20AB;
/// Longest properties that a record can hold.
pub const PROPERTIES_LIMIT: usize = 32_767;
/// Longest topic of a record with [`MAGIC_V1`].
pub const SHORT_TOPIC_LIMIT: usize = 127;
/// Longest topic of a record.
pub const TOPIC_LIMIT: usize = 32_767;
/// Bytes of a record beside body, topic and properties: two IPv4 hosts, short topic.
pub const FIXED_LEN: usize = 91;

/// System flag: the body is compressed.
pub const FLAG_COMPRESSED: u32 = 1;
/// System flag: half message of a transaction (bits 2 and 3).
pub const FLAG_TRANSACTION_PREPARED: u32 = 0x4;
/// System flag: the born host is an IPv6 address.
pub const FLAG_BORN_HOST_V6: u32 = 1 << 4;
/// System flag: the store host is an IPv6 address.
pub const FLAG_STORE_HOST_V6: u32 = 1 << 5;

const QUEUE_OFFSET_AT: usize = 20;
const PHYSICAL_OFFSET_AT: usize = 28;
const SYSTEM_FLAG_AT: usize = 36;
const BORN_HOST_AT: usize = 48;

const _: () = assert!(FIXED_LEN == BORN_HOST_AT + 8 + 8 + 8 + 4 + 8 + 4 + 1 + 2);
const _: () = assert!(SYSTEM_FLAG_AT == PHYSICAL_OFFSET_AT + 8 && PHYSICAL_OFFSET_AT == QUEUE_OFFSET_AT + 8);

/// Everything that a record is made of; positions and store time are zero until they are known.
#[derive(Debug, Clone, Copy)]
pub struct RecordBuilder<'a> {
    /// Queue of the topic.
    pub queue_id: u32,
    /// Free for the application.
    pub flag: i32,
    /// System flag; the bits for the hosts' kinds are set here by themselves.
    pub system_flag: u32,
    /// Producer's clock, ms.
    pub born_timestamp: i64,
    /// Where the producer's call came from.
    pub born_host: SocketAddr,
    /// Node that encodes the record.
    pub store_host: SocketAddr,
    /// Earlier deliveries by send-back.
    pub reconsume_times: i32,
    /// Of transactions of the classic protocol; else 0.
    pub prepared_offset: i64,
    /// Body as transported.
    pub body: &'a [u8],
    /// Topic, with its namespace before it if it has one.
    pub topic: &'a str,
    /// Encoded by [`super::properties::PropertiesBuilder`].
    pub properties: &'a [u8],
}

impl RecordBuilder<'_> {
    /// The record's bytes.
    pub fn encode(&self) -> Result<Vec<u8>, FormatError> {
        limit("topic", self.topic.len(), TOPIC_LIMIT)?;
        limit("properties", self.properties.len(), PROPERTIES_LIMIT)?;
        let long_topic = self.topic.len() > SHORT_TOPIC_LIMIT;
        let size = self.size();
        limit("record", size, i32::MAX as usize)?;

        let mut out = Vec::with_capacity(size);
        out.extend_from_slice(&(size as u32).to_be_bytes());
        out.extend_from_slice(&(if long_topic { MAGIC_V2 } else { MAGIC_V1 }).to_be_bytes());
        out.extend_from_slice(&body_crc(self.body).to_be_bytes());
        out.extend_from_slice(&self.queue_id.to_be_bytes());
        out.extend_from_slice(&self.flag.to_be_bytes());
        out.extend_from_slice(&[0; 16]);
        out.extend_from_slice(&self.flags_with_hosts().to_be_bytes());
        out.extend_from_slice(&self.born_timestamp.to_be_bytes());
        put_host(&mut out, self.born_host);
        out.extend_from_slice(&[0; 8]);
        put_host(&mut out, self.store_host);
        out.extend_from_slice(&self.reconsume_times.to_be_bytes());
        out.extend_from_slice(&self.prepared_offset.to_be_bytes());
        out.extend_from_slice(&(self.body.len() as u32).to_be_bytes());
        out.extend_from_slice(self.body);
        if long_topic {
            out.extend_from_slice(&(self.topic.len() as u16).to_be_bytes());
        } else {
            out.push(self.topic.len() as u8);
        }
        out.extend_from_slice(self.topic.as_bytes());
        out.extend_from_slice(&(self.properties.len() as u16).to_be_bytes());
        out.extend_from_slice(self.properties);
        debug_assert_eq!(out.len(), size, "the drawing and the size agree");
        Ok(out)
    }

    /// Length of the record.
    #[must_use]
    pub fn size(&self) -> usize {
        let hosts = [self.born_host, self.store_host].iter().filter(|host| host.is_ipv6()).count();
        let topic_length = usize::from(self.topic.len() > SHORT_TOPIC_LIMIT);
        FIXED_LEN + 12 * hosts + topic_length + self.body.len() + self.topic.len() + self.properties.len()
    }

    fn flags_with_hosts(&self) -> u32 {
        let mut flags = self.system_flag & !(FLAG_BORN_HOST_V6 | FLAG_STORE_HOST_V6);
        if self.born_host.is_ipv6() {
            flags |= FLAG_BORN_HOST_V6;
        }
        if self.store_host.is_ipv6() {
            flags |= FLAG_STORE_HOST_V6;
        }
        flags
    }
}

/// A record, taken apart without copying.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Stored CRC of the body.
    pub body_crc: u32,
    /// Queue of the topic.
    pub queue_id: u32,
    /// Free for the application.
    pub flag: i32,
    /// Position in the queue; 0 as stored.
    pub queue_offset: u64,
    /// Position in the CommitLog; 0 as stored.
    pub physical_offset: u64,
    /// System flag.
    pub system_flag: u32,
    /// Producer's clock, ms.
    pub born_timestamp: i64,
    /// Where the producer's call came from.
    pub born_host: SocketAddr,
    /// When it was stored, ms; 0 as stored.
    pub store_timestamp: u64,
    /// Node that encoded the record.
    pub store_host: SocketAddr,
    /// Earlier deliveries by send-back.
    pub reconsume_times: i32,
    /// Of transactions of the classic protocol.
    pub prepared_offset: i64,
    /// Body as transported.
    pub body: &'a [u8],
    /// Topic, with its namespace before it if it has one.
    pub topic: &'a str,
    /// Undecoded; see [`super::properties::Properties`].
    pub properties: &'a [u8],
}

impl<'a> Record<'a> {
    /// Takes a record apart. `bytes` must be one record and nothing else. The body's CRC is not checked.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, FormatError> {
        let size = total_size(bytes)?;
        if size < bytes.len() {
            return Err(FormatError::LeftOver { what: "record", count: bytes.len() - size });
        }
        let mut reader = Reader::new(bytes);
        reader.u32_be("total size")?;
        let magic = reader.u32_be("magic")?;
        let body_crc = reader.u32_be("body CRC")?;
        let queue_id = reader.u32_be("queue id")?;
        let flag = reader.i32_be("flag")?;
        let queue_offset = reader.u64_be("queue offset")?;
        let physical_offset = reader.u64_be("physical offset")?;
        let system_flag = reader.u32_be("system flag")?;
        let born_timestamp = reader.i64_be("born timestamp")?;
        let born_host = take_host(&mut reader, system_flag & FLAG_BORN_HOST_V6 != 0, "born host")?;
        let store_timestamp = reader.u64_be("store timestamp")?;
        let store_host = take_host(&mut reader, system_flag & FLAG_STORE_HOST_V6 != 0, "store host")?;
        let reconsume_times = reader.i32_be("reconsume times")?;
        let prepared_offset = reader.i64_be("prepared transaction offset")?;
        let body_len = reader.u32_be("body length")? as usize;
        let body = reader.take(body_len, "body")?;
        let topic_len = match magic {
            MAGIC_V1 => usize::from(reader.u8("topic length")?),
            _ => usize::from(reader.u16_be("topic length")?),
        };
        let topic = reader.text(topic_len, "topic")?;
        let properties_len = usize::from(reader.u16_be("properties length")?);
        let properties = reader.take(properties_len, "properties")?;
        reader.end("record")?;
        Ok(Self {
            body_crc,
            queue_id,
            flag,
            queue_offset,
            physical_offset,
            system_flag,
            born_timestamp,
            born_host,
            store_timestamp,
            store_host,
            reconsume_times,
            prepared_offset,
            body,
            topic,
            properties,
        })
    }

    /// Whether the body is what was stored.
    pub fn check_body(&self) -> Result<(), FormatError> {
        let expected = body_crc(self.body);
        if self.body_crc == expected {
            return Ok(());
        }
        Err(FormatError::Checksum { what: "record body", found: self.body_crc, expected })
    }
}

/// Size of the record that `bytes` begin with; all of it is there and its magic is one of ours.
pub fn total_size(bytes: &[u8]) -> Result<usize, FormatError> {
    let mut reader = Reader::new(bytes);
    let size = reader.u32_be("total size")? as usize;
    let magic = reader.u32_be("magic")?;
    if magic != MAGIC_V1 && magic != MAGIC_V2 {
        return Err(FormatError::Value {
            what: "magic",
            found: u64::from(magic),
            expected: "0xDAA320A7 or 0xDAA320AB",
        });
    }
    if size < FIXED_LEN {
        return Err(FormatError::Value { what: "total size", found: size as u64, expected: "at least 91" });
    }
    if size > bytes.len() {
        return Err(FormatError::Truncated { what: "record", need: size, have: bytes.len() });
    }
    Ok(size)
}

/// Writes the three fields that are stored as zero into a copy of a record: they follow from where the record
/// lies and from its frame, so a read fills them in.
pub fn fill_positions(
    record: &mut [u8],
    queue_offset: u64,
    physical_offset: u64,
    store_time: u64,
) -> Result<(), FormatError> {
    total_size(record)?;
    put_u64(record, QUEUE_OFFSET_AT, queue_offset);
    put_u64(record, PHYSICAL_OFFSET_AT, physical_offset);
    let flags = Reader::new(&record[SYSTEM_FLAG_AT..]).u32_be("system flag")?;
    let born_host = if flags & FLAG_BORN_HOST_V6 == 0 { 8 } else { 20 };
    put_u64(record, BORN_HOST_AT + born_host, store_time);
    Ok(())
}

fn put_u64(record: &mut [u8], at: usize, value: u64) {
    record[at..at + 8].copy_from_slice(&value.to_be_bytes());
}

fn limit(what: &'static str, value: usize, limit: usize) -> Result<(), FormatError> {
    if value > limit { Err(FormatError::TooLong { what, value, limit }) } else { Ok(()) }
}

pub(crate) fn put_host(out: &mut Vec<u8>, host: SocketAddr) {
    match host.ip() {
        IpAddr::V4(ip) => out.extend_from_slice(&ip.octets()),
        IpAddr::V6(ip) => out.extend_from_slice(&ip.octets()),
    }
    out.extend_from_slice(&u32::from(host.port()).to_be_bytes());
}

fn take_host(reader: &mut Reader<'_>, v6: bool, what: &'static str) -> Result<SocketAddr, FormatError> {
    let ip = if v6 {
        IpAddr::V6(Ipv6Addr::from(reader.array::<16>(what)?))
    } else {
        IpAddr::V4(Ipv4Addr::from(reader.array::<4>(what)?))
    };
    let port = reader.u32_be(what)?;
    let port = u16::try_from(port).map_err(|_| FormatError::Value {
        what,
        found: u64::from(port),
        expected: "a port up to 65535",
    })?;
    Ok(SocketAddr::new(ip, port))
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
